"""The distributions of this tree and what they require."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dev import paths
from dev.console import stop


def distributions() -> dict[str, Path]:
    """Name to folder of every distribution in this tree, in order of folders."""
    files = sorted(
        [*paths.ROOT.glob("core/pyproject.toml"), *paths.ROOT.glob("[!.]*/*/pyproject.toml")]
    )
    return {metadata(file.parent)["name"]: file.parent for file in files}


def metadata(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table of the distribution in `folder`."""
    import tomllib  # not there before Python 3.11, where need_python() still has something to say

    return dict(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def choose(words: list[str]) -> list[str]:
    """Return the names of the distributions that `words` mean, by folder or by name; all without words."""
    known = distributions()
    by_folder = {str(folder.relative_to(paths.ROOT)): name for name, folder in known.items()}
    chosen = [by_folder.get(word.removeprefix("./").rstrip("/"), word) for word in words]
    for name in chosen:
        if name not in known:
            stop(f"no distribution {name!r}; there are:\n  " + "\n  ".join(by_folder))
    return chosen or list(known)


def closure(wanted: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the distributions of this tree that `wanted` (name to extras) needs, themselves included."""
    known = distributions()
    found: dict[str, set[str]] = {}
    pending = list(wanted.items())
    while pending:
        name, extras = pending.pop()
        if name not in known or (name in found and extras <= found[name]):
            continue
        project = metadata(known[name])
        optional = project.get("optional-dependencies", {})
        extras = extras.intersection(optional)
        found.setdefault(name, set()).update(extras)
        asked = [line for key in extras for line in optional.get(key, [])]
        for line in [*project["dependencies"], *asked]:
            requirement, more = required(line)
            pending.append((requirement, more))
    return found


def required(line: str) -> tuple[str, set[str]]:
    """Return the name and the extras in a requirement."""
    name, _, more = re.split(r"[;<>=!~@ ]", line)[0].partition("[")
    return name.lower(), set(re.findall(r"[\w.-]+", more))


def without_dependencies() -> set[str]:
    """Return the names in requirements-no-deps.txt."""
    text = (paths.ROOT / paths.NO_DEPS).read_text(encoding="utf-8")
    folders = re.findall(r"^-e \./(\S+)$", text, re.MULTILINE)
    others = re.findall(r"^\w.*$", text, re.MULTILINE)
    return {metadata(paths.ROOT / folder)["name"] for folder in folders} | {
        required(line)[0] for line in others
    }
