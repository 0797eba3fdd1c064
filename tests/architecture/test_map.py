"""The map of the tree lists every module of every distribution, once, and nothing else."""

from __future__ import annotations

import re

from house import ROOT, distributions

PAGE = ROOT / "docs" / "explanation" / "map.md"
ENTRY = re.compile(r"^(?:\*\*`([\w.]+)`\*\*|- `(\w+)`): ?(.*)$", re.MULTILINE)


def listed() -> list[tuple[str, str]]:
    """(module, its line); a package's own line comes before those of its modules."""
    found = []
    package = ""
    for named, module, text in ENTRY.findall(PAGE.read_text(encoding="utf-8")):
        package = named or package
        found.append((f"{package}.{module}" if module else package, text))
    return found


def test_every_module_is_listed_once():
    modules = [
        ".".join(file.relative_to(dist.folder / "src").with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for dist in distributions()
        for file in dist.sources
    ]
    assert sorted(name for name, _ in listed()) == sorted(modules)


def test_every_module_says_what_it_is_for():
    assert [name for name, text in listed() if len(text.split()) < 2] == []
