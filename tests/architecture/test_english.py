"""Docstrings begin with a noun or verb, texts for users have no foreign idioms, subjects of commits name an area."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from house import ROOT

CLAUSE = re.compile(r"\W*(How|What|Where|Whether|Which|Who|Why)\b")
MAX_SHARE = 0.002  # of docstrings that begin with a clause; it only falls
IDIOM = re.compile(
    r"\b(started again|(?<!pass )go(es)? on|in turns|at once|few bits|in (the|its) place of|given up|meanwhile)\b"
)
SUBJECT = re.compile(r"(?=.{1,72}$)(Merge |Revert |[a-z0-9-]+(\(.+\))?: )")
DIARY = re.compile(r"\b(hours|days) before,|\bof that day\b", re.IGNORECASE)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the place of each docstring of a source file, and its text."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield f"{file}:{node.body[0].lineno}", text


def clauses(found: list[tuple[str, str]]) -> list[str]:
    """Return the docstrings that begin with a clause, each with its place."""
    return [f"{place}: {text.splitlines()[0]}" for place, text in found if CLAUSE.match(text)]


def texts(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the place of each text of a source file, and the text; docstrings are left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if " " in node.value and id(node) not in statements:
                yield f"{file}:{node.lineno}", node.value


def git(*words: str) -> str:
    """Return the output of a git command; empty if it fails, as in a tree without git or history."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def subjects() -> list[str]:
    """Return the subjects of this change's commits: since `BASE`, origin's main or else the commit before HEAD."""
    names = filter(None, [os.environ.get("BASE"), "origin/main"])
    base = next(filter(None, (git("merge-base", "HEAD", name) for name in names)), "HEAD~1")
    first = git(
        "log", "--diff-filter=A", "--format=^%H", "--", __file__
    )  # the rule is as old as this file
    return git("log", "--format=%s", "HEAD", f"^{base}", *first.split()).splitlines()


@pytest.mark.slow
def test_docstrings_begin_with_nouns_and_verbs():
    files = [*ROOT.glob("*.py"), *ROOT.glob("[!.]*/**/*.py")]
    found = [each for file in files for each in docstrings(file)]
    named = clauses(found)
    assert len(named) <= MAX_SHARE * len(found), "\n".join(named)


def idioms(files: Iterable[Path]) -> list[str]:
    """Return the texts with idioms, each with its place."""
    found = (each for file in files for each in texts(file))
    return [f"{place}: {text}" for place, text in found if IDIOM.search(text)]


@pytest.mark.slow
def test_messages_and_help_have_no_idioms():
    found = idioms([*ROOT.glob("core/src/**/*.py"), *ROOT.glob("[!.]*/*/src/**/*.py")])
    assert found == [], "CONTRIBUTING.md has the words to use instead"


def test_an_idiom_is_found(tmp_path: Path):
    file = tmp_path / "words.py"
    file.write_text(
        '"""It goes on."""\nlog("engine %d is started again")\nlog("engine 0 restarts")\n'
    )
    assert [line.rpartition(": ")[2] for line in idioms([file])] == ["engine %d is started again"]


def test_pages_are_no_diary():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/*/README.md")]
    found = [
        f"{page.relative_to(ROOT)}: {match[0]}"
        for page in pages
        for match in DIARY.finditer(page.read_text(encoding="utf-8"))
    ]
    assert found == [], "name a date or a version"


@pytest.mark.integration
def test_subjects_of_commits_name_an_area():
    assert [subject for subject in subjects() if not SUBJECT.match(subject)] == []


def test_a_clause_is_found(tmp_path: Path):
    file = tmp_path / "words.py"
    file.write_text(
        '"""What it does."""\ndef f():\n    """Whatever."""\ndef g():\n    "`Which` one."\n'
    )
    assert [line.partition(": ")[2] for line in clauses(list(docstrings(file)))] == [
        "What it does.",
        "`Which` one.",
    ]


@pytest.mark.parametrize(("subject", "is_good"), [
    ("core: name it", True), ("worker-torch(fuse): drop it", True), ("Name it", False), ("core: " + 67 * "x", False),
])  # fmt: skip
def test_subjects_are_recognised(subject: str, is_good: bool):
    assert bool(SUBJECT.match(subject)) == is_good
