"""Check that every distribution imports only what it declares; `dev.py check declared` runs this as a script.

A distribution's `src/` may import the standard library, itself, and what its dependencies or extras name. Its `tests/`
may also import the kernel, the testkit and what those two declare, because that is what an isolated environment holds,
and helpers beside the tests of a distribution that it declares.
An import counts at any place: inside a function, and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from importlib.metadata import packages_distributions
from pathlib import Path

from house import ROOT, Distribution, distributions

TEST_TOOLS = {"pytest", "pytest-timeout"}


def canonical(requirement: str) -> str:
    """Return the normalised name of the distribution in a requirement line."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[;<>=!~@(]", requirement.strip())[0]).lower()


def imported_names(file: Path) -> dict[str, int]:
    """Return the top-level module names that `file` imports, with the line of the first import."""
    names: dict[str, int] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found = [node.module]
        else:
            continue
        for name in found:
            names.setdefault(name.partition(".")[0], node.lineno)
    return names


def declared_names(dist: Distribution, *, with_test_extra: bool) -> set[str]:
    """Return the names of the distributions that `dist` declares, in its dependencies and in its extras."""
    lines = list(dist.project.get("dependencies", []))
    for extra, more in dist.project.get("optional-dependencies", {}).items():
        if extra != "test" or with_test_extra:
            lines += more
    return {canonical(line) for line in lines}


def providers(dists: list[Distribution]) -> dict[str, set[str]]:
    """Return which distributions provide an import name: those of the tree, and those that are installed."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, owners in packages_distributions().items():
        found[name] |= {canonical(owner) for owner in owners}
    for dist in dists:
        found[dist.import_name] = {canonical(dist.name)}
    return found


def undeclared(dists: list[Distribution], root: Path = ROOT) -> list[str]:
    """Return one line per import that its distribution does not declare."""
    provided = providers(dists)
    shared = set(TEST_TOOLS)
    for dist in dists:
        if dist.name in {"tenonry", "tenonry-testkit"}:
            shared |= {dist.name} | declared_names(dist, with_test_extra=False)
    lines = []
    for dist in dists:
        own = {dist.import_name}
        src_allowed = declared_names(dist, with_test_extra=False)
        test_allowed = shared | {dist.name} | declared_names(dist, with_test_extra=True)
        test_own = own | {path.stem for path in (dist.folder / "tests").rglob("*")}
        for other in dists:
            if canonical(other.name) in test_allowed:
                test_own |= {path.stem for path in (other.folder / "tests").glob("*.py")}
        parts = [(dist.sources, own, src_allowed), (dist.tests, test_own, test_allowed)]
        for files, local, allowed in parts:
            for file in files:
                for name, line in imported_names(file).items():
                    # An extra that is not installed provides the module of its name.
                    owned = provided[name] or {canonical(name)}
                    if name in sys.stdlib_module_names or name in local or owned & allowed:
                        continue
                    owners = " or ".join(sorted(provided[name])) or "nothing that is installed"
                    where = f"{file.relative_to(root)}:{line}"
                    lines.append(
                        f"{where}: imports {name} ({owners}), which {dist.name} does not declare"
                    )
    return lines


if __name__ == "__main__":
    problems = undeclared(distributions())
    print("\n".join(problems) or "every import is declared")
    sys.exit(1 if problems else 0)
