"""Every row of `docs/reference/reported-faults.md` names tests, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from house import ROOT

PAGE = ROOT / "docs" / "reference" / "reported-faults.md"
ROW = re.compile(r"^\| ([A-Z]\d*) \| .* \| (.*) \|$", re.MULTILINE)
TEST = re.compile(r"`([^`]+\.py)::([^`]+)`")
# By kind: wrong answers, other clients, conversations, clients, rows of behaviour, attacks, engine and files.
WANTED = {
    *(f"A{n}" for n in range(1, 7)), "B7", *(f"C{n}" for n in range(8, 14)), *(f"D{n}" for n in range(14, 20)),
    "E20", *"OPQRSTUVWXYZ", *(f"G{n}" for n in range(21, 37)),
}  # fmt: skip


def rows() -> list[tuple[str, list[tuple[str, str]]]]:
    """Rows of the page: their id, and the file and qualified name of each test."""
    text = PAGE.read_text(encoding="utf-8")
    return [(row, TEST.findall(tests)) for row, tests in ROW.findall(text)]


def names(file: Path) -> set[str]:
    """Qualified names of the classes and functions of a file."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (
                one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            )
            found |= {f"{node.name}::{one.name}" for one in inner}
    return found


def test_every_kind_has_a_row_with_tests():
    assert {row for row, _ in rows()} == WANTED
    assert [row for row, tests in rows() if not tests] == []


def test_every_named_test_exists():
    named = {test for _, tests in rows() for test in tests}
    files = {file: names(ROOT / file) if (ROOT / file).is_file() else set() for file, _ in named}
    assert sorted(f"{file}::{name}" for file, name in named if name not in files[file]) == []
