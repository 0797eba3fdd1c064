"""Texts under the settings of a class, read from its source.

pydantic could read them, too, but would do so whenever the class is imported: 20 ms for `EngineConfig` in each process.
"""

from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path


def setting_texts(owner: type) -> dict[str, str]:
    """By the name of a setting, the text under it. Settings without one are left out."""
    source = Path(inspect.getfile(owner)).read_text(encoding="utf-8")
    body = next(
        node.body
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    texts = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts
