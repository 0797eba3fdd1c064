"""Every row and fault that code, tests or pages cite is defined in `docs/reference/behaviour.md`, once."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from house import ROOT

PAGE = ROOT / "docs" / "reference" / "behaviour.md"
FAMILIES = "PM|HS|EC|IO|DP|RA|AF|WK|BF|US|PR|SL|IP|SO|MM|KV|SV"
# `EC-3`, `AF-4, 20, 21`, `IO-1 to IO-13`, `RA-1…7`, `WK-3, 7 and 8`.
CITED = re.compile(rf"\b({FAMILIES})-(\d+)((?:(?:, | and |…|–)\d+\b)*)")
DEFECTS = re.compile(r"\bQ(\d+)\b(?!\.\d)")
FAULTS = re.compile(r"\bfaults? (\d+)((?:(?:, | and )\d+\b)*)")
DEFINED = re.compile(r"^\| ([A-Z]{2}-\d+|Q\d+|fault \d+) \|", re.MULTILINE)


def sources() -> Iterator[Path]:
    """Code and pages of the tree, without environments."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not name.startswith(".")]
        yield from (Path(folder, file) for file in files if file.endswith((".py", ".md")))


def cited(text: str) -> set[str]:
    """The ids that a text names; each number of an enumeration counts."""
    found = set()
    for family, number, more in CITED.findall(text):
        found.update(f"{family}-{each}" for each in [number, *re.findall(r"\d+", more)])
    for number, more in FAULTS.findall(text):
        found.update(f"fault {each}" for each in [number, *re.findall(r"\d+", more)])
    found.update(f"Q{number}" for number in DEFECTS.findall(text))
    return found


def test_every_cited_row_is_defined():
    defined = set(DEFINED.findall(PAGE.read_text(encoding="utf-8")))
    missing = {
        str(file.relative_to(ROOT)): sorted(unknown)
        for file in sources()
        if (unknown := cited(file.read_text(encoding="utf-8")) - defined) and file != Path(__file__)
    }
    assert missing == {}


def test_nothing_cites_a_text_that_is_not_in_the_tree():
    elsewhere = re.compile(r"\b(design|house|reliability) §\d")
    citing = [
        str(file.relative_to(ROOT))
        for file in sources()
        if elsewhere.search(file.read_text(encoding="utf-8"))
    ]
    assert citing == []


def test_rows_are_defined_once():
    counts = Counter(DEFINED.findall(PAGE.read_text(encoding="utf-8")))
    assert [row for row, count in counts.items() if count > 1] == []
    assert len(counts) > 150


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("EC-3, EC-4.", {"EC-3", "EC-4"}),
        ("AF-4, 20, 21", {"AF-4", "AF-20", "AF-21"}),
        ("IO-1 to IO-13, Q15, fault 21", {"IO-1", "IO-13", "Q15", "fault 21"}),
        ("RA-1…7", {"RA-1", "RA-7"}),
        ("faults 10 and 25", {"fault 10", "fault 25"}),
        ("SHA-256 and UTF-8, CVE-2026-1", set()),
    ],
)
def test_ids_are_found_as_they_are_written(text, ids):
    assert cited(text) == ids
