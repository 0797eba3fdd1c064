"""The page of failpoints."""

from __future__ import annotations

import inspect

from reference_pages.text import NOTICE


def failpoints_page() -> str:
    """Every failpoint, and how a fault is written."""
    from tenonry_failpoints import faults
    from tenonry_failpoints.borders import BORDERS

    syntax = (inspect.getdoc(faults) or "").partition("\n\n")[2]
    parts = ["# Failpoints\n", NOTICE]
    parts += [
        "Of `tenonry-failpoints`, which tests install; its README says how they are used.\n",
        f"{syntax}\n",
        "With `TENONRY_FAILPOINTS_SHARED=FOLDER` all processes count together, in files there.\n",
        "| failpoints | when |",
        "|---|---|",
    ]
    parts += [f"| `{border.before}`, `{border.after}` | {border.what} |" for border in BORDERS]
    return "\n".join(parts) + "\n"
