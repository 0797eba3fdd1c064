"""Writes the reference pages from the code. `--check` compares.

Run it as `python docs/reference/generate.py` after a change; a test fails when the pages are out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from reference_pages.commands import commands_page
from reference_pages.compatibility import compatibility_page
from reference_pages.configuration import config_page
from reference_pages.failpoints import failpoints_page
from reference_pages.hooks import hooks_page
from reference_pages.interfaces import interfaces_page
from reference_pages.metrics import metrics_page
from reference_pages.public_modules import public_modules_page
from reference_pages.records import records_page
from reference_pages.tree import tree_page

HERE = Path(__file__).resolve().parent
PAGES = {
    "hooks.md": hooks_page,
    "public-modules.md": public_modules_page,
    "interfaces.md": interfaces_page,
    "records.md": records_page,
    "configuration.md": config_page,
    "metrics.md": metrics_page,
    "commands.md": commands_page,
    "failpoints.md": failpoints_page,
    "tree.md": tree_page,
    "compatibility.md": compatibility_page,
}


def outdated() -> list[str]:
    """Pages whose file differs from the code."""
    return [
        name
        for name, make in PAGES.items()
        if not (HERE / name).is_file() or (HERE / name).read_text("utf-8") != make()
    ]


def main() -> int:
    """Write the pages, or compare them; returns the exit status."""
    if "--check" in sys.argv:
        stale = outdated()
        sys.stdout.write("".join(f"docs/reference/{name} is out of date\n" for name in stale))
        return 1 if stale else 0
    for name, make in PAGES.items():
        (HERE / name).write_text(make(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
