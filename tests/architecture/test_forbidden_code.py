"""No pickle and its relatives, no eval and no exec, in any distribution's sources (by syntax tree)."""

from __future__ import annotations

import ast

import pytest
from house import distributions

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec"}
SOURCES = [file for dist in distributions() for file in dist.sources]


def forbidden(source: str) -> list[str]:
    """Return what is forbidden in `source`, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call):
            names = forbidden_in_call(node)
        found += [f"line {node.lineno}: {name}" for name in names if name in MODULES | CALLS]
    return found


def forbidden_in_call(node: ast.Call) -> list[str]:
    """Return the names that matter in a call: builtins, modules given as strings, readers of pickles."""
    function = node.func
    names = [
        word.arg for word in node.keywords if word.arg == "allow_pickle" and is_true(word.value)
    ]
    if names:
        return ["pickle"]
    if isinstance(function, ast.Name):
        names = [function.id]
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        if function.value.id == "builtins":
            names = [function.attr]
        elif (function.value.id, function.attr) == ("torch", "load"):
            plain = [word for word in node.keywords if word.arg == "weights_only"]
            names = [] if plain and is_true(plain[0].value) else ["pickle"]
    called = function.attr if isinstance(function, ast.Attribute) else names[0] if names else ""
    if (
        called in {"import_module", "__import__"}
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ):
        names = [str(node.args[0].value).partition(".")[0]]
    return names


def is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


@pytest.mark.slow
def test_sources_are_free_of_it():
    found = {str(file): forbidden(file.read_text(encoding="utf-8")) for file in SOURCES}
    assert len(found) > 100
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal as m",
        "from cloudpickle import dumps",
        "from dill.source import getsource",
        "from builtins import eval",
        "eval('1')",
        "def f():\n    exec('x = 1')",
        "import builtins\nbuiltins.exec('1')",
        "import importlib\nimportlib.import_module('pickle')",
        "__import__('marshal')",
        "import numpy\nnumpy.load('f', allow_pickle=True)",
        "import torch\ntorch.load('f')",
        "import torch\ntorch.load('f', weights_only=False)",
        "import torch\ntorch.load('f', weights_only=plain)",
    ],
)
def test_checker_finds(source: str):
    assert len(forbidden(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "self.exec('x')",
        "import json",
        "numpy.load('f', allow_pickle=False)",
        "evaluate('1')",
        "import torch\ntorch.load('f', weights_only=True)",
    ],
)
def test_checker_lets_pass(source: str):
    assert forbidden(source) == []
