"""Texts under the settings of a class, read from its source.

pydantic could read them, too, but would do so whenever the class is imported: 20 ms for `EngineConfig` in each process.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
from pathlib import Path

from pydantic import BaseModel


def setting_texts(owner: type) -> dict[str, str]:
    """By the name of a setting, the text under it, in its class or in one above. Settings without one are left out."""
    texts: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if issubclass(each, BaseModel) and each is not BaseModel:
            with contextlib.suppress(OSError, TypeError):  # it has no source
                texts |= _classes(inspect.getfile(each)).get(each.__name__, {})
    return texts


@functools.cache
def _classes(file: str) -> dict[str, dict[str, str]]:
    """The texts of each class of a file."""
    nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return {node.name: _texts(node.body) for node in nodes if isinstance(node, ast.ClassDef)}


def _texts(body: list[ast.stmt]) -> dict[str, str]:
    texts = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts
