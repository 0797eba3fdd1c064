"""No server outlives the file that needs it: tests of other files count the child processes of their tester."""

from __future__ import annotations

import ast
import re

import pytest
from house import ROOT

FOLDERS = ("core", "executors", "plugins", "schedulers", "stat_loggers", "tests")
LONG = re.compile(r"""scope=["'](session|package)""")
STARTS = {"ForkedServer", "Popen", "Server", "_serve", "start_server"}


def long_servers(source: str) -> list[str]:
    """Fixtures of a whole session, or package, that start a process and keep it."""
    found: list[str] = []
    if not LONG.search(source):  # spares the parsing of most files
        return found
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef):
            continue
        marks = " ".join(map(ast.unparse, node.decorator_list))
        is_long = "scope='session'" in marks or "scope='package'" in marks
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        names |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        is_open = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node))
        if is_long and is_open and names & STARTS:
            found.append(node.name)
    return found


@pytest.mark.slow
def test_no_fixture_of_a_session_starts_a_server():
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("tests/**/*.py")]
    files += (ROOT / "tests").rglob("*.py")
    found = {file: long_servers(file.read_text("utf-8")) for file in set(files)}
    assert {str(file.relative_to(ROOT)): names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(("scope", "found"), [("session", ["door"]), ("module", [])])
def test_such_a_fixture_is_found(scope: str, found: list[str]):
    text = f'@pytest.fixture(scope="{scope}")\ndef door():\n    yield Server(1).ready()\n'
    assert long_servers(text) == found
