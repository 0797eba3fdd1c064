"""Text files and pipes are opened with their encoding, since locales differ (by syntax tree)."""

from __future__ import annotations

import ast
import re

import pytest
from house import ROOT, distributions

SOURCES = [file for dist in distributions() for file in dist.sources]
SOURCES += [*(ROOT / "dev").glob("*.py"), *(ROOT / "docs" / "reference").rglob("*.py")]
# Index of the encoding among the positional arguments; a call with as many of them has one.
METHODS = {"read_text": 0, "write_text": 1, "open": 2}
FUNCTIONS = {"open": 3, "fdopen": 3, "TextIOWrapper": 1}
TEMPORARY = {"TemporaryFile", "NamedTemporaryFile", "SpooledTemporaryFile"}
TEXT_MODE = re.compile(r"[rwax+t]+")


def without_encoding(source: str) -> list[str]:
    """Return each call in `source` that leaves the encoding to the locale, with its line."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [f"line {call.lineno}: {ast.unparse(call)}" for call in calls if is_left_open(call)]


def is_left_open(call: ast.Call) -> bool:
    named = {word.arg: word.value for word in call.keywords}
    if "encoding" in named:
        return False
    if named.keys() & {"text", "universal_newlines"}:
        return name_of(call.func) in {"run", "Popen", "check_output"}
    modes = [value.value for value in (*call.args, *named.values()) if is_text(value)]
    if name_of(call.func) in TEMPORARY:
        return any(TEXT_MODE.fullmatch(mode) for mode in modes)
    if any(re.fullmatch(r"[rwax+]*b[rwax+]*", mode) for mode in modes):
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        is_file = call.func.attr != "open" or any(TEXT_MODE.fullmatch(mode) for mode in modes)
        return is_file and len(call.args) <= METHODS[call.func.attr]
    limit = FUNCTIONS.get(name_of(call.func))
    return limit is not None and len(call.args) <= limit


def name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.slow
def test_no_source_leaves_an_encoding_to_the_locale():
    found = {str(file): without_encoding(file.read_text("utf-8")) for file in SOURCES}
    assert {file: calls for file, calls in found.items() if calls} == {}


@pytest.mark.parametrize(
    "call",
    [
        "open(p)",
        "open(p, 'w')",
        "p.open('a')",
        "p.read_text()",
        "p.write_text(x)",
        "os.fdopen(1, 'w')",
        "io.TextIOWrapper(b)",
        "tempfile.TemporaryFile('w+')",
        "subprocess.run(c, text=True)",
    ],
)
def test_a_call_without_encoding_is_found(call):
    assert without_encoding(call) == [f"line 1: {call}"]


@pytest.mark.parametrize(
    "call",
    [
        "open(p, 'rb')",
        "open(p, encoding='utf-8')",
        "p.open(mode='wb')",
        "form.open(output)",
        "p.read_text('utf-8')",
        "p.write_text(x, 'utf-8')",
        "os.open(p, os.O_RDONLY)",
        "os.fdopen(1, 'rb')",
        "tempfile.NamedTemporaryFile()",
        "subprocess.run(c, encoding='utf-8')",
    ],
)
def test_other_calls_are_not(call):
    assert without_encoding(call) == []
