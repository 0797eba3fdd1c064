"""Mutants of a module: small changes of its functions that tests should notice. Any process; runs none of it.

Operators: comparisons, `and` and `or`, `not`, `+` and `-`, `*` and `//`, integers plus one, flags inverted, `return`
without its value, and a statement left out.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
}
DROPPED = (ast.Assign, ast.AugAssign, ast.Raise, ast.Delete)
MOST_CHARS = 60


class Mutant(NamedTuple):
    """One change: `source` is the whole module with it, `text` the change alone."""

    line: int
    text: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of their lines."""
    tree = ast.parse(source)
    nodes = sorted(_changeable(tree), key=lambda node: (node.lineno, node.col_offset))
    for node in nodes:
        before = ast.unparse(node)
        kept = copy.copy(node.__dict__), node.__class__
        for changed in _variants(node):
            _become(node, changed)
            after = "nothing" if isinstance(changed, ast.Pass) else ast.unparse(changed)
            yield Mutant(
                kept[0]["lineno"], f"{_short(before)} → {_short(after)}", ast.unparse(tree)
            )
            node.__class__ = kept[1]  # type: ignore[assignment]
            node.__dict__.clear()
            node.__dict__.update(kept[0])


def _become(node: ast.AST, other: ast.AST) -> None:
    """Let the tree have another node in the place of this one."""
    node.__class__ = other.__class__  # type: ignore[assignment]
    node.__dict__.clear()
    node.__dict__.update(other.__dict__)


def _changeable(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Statements and expressions in the bodies of functions, without annotations."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _inner(statement)


def _inner(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return  # found by itself
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "ctx"} or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inner(child)


def _variants(node: ast.expr | ast.stmt) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.Compare(ops=ops):
            for place, each in enumerate(ops):
                changed = copy.copy(node)
                changed.ops = [*ops[:place], COMPARISONS[type(each)](), *ops[place + 1 :]]
                yield changed
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(other, values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case _ if isinstance(node, DROPPED):
            yield ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_CHARS else line[: MOST_CHARS - 1] + "…"
