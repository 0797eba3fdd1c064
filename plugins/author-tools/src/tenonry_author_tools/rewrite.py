"""Renames in Python source that keep its layout: imports, uses of imported names, members and versions of classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

VERSION = "interface_version"


class Edit(NamedTuple):
    """Text in place of the bytes from `start` to `end`."""

    start: int
    end: int
    text: str


def edited(source: str, edits: Collection[Edit]) -> str:
    """Source with all edits made."""
    data = source.encode()
    for edit in sorted(set(edits), reverse=True):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data.decode()


def declared_version(source: str, name: str) -> int | None:
    """Interface version that a class declares in its body; None if it declares none."""
    for value in _versions(_classes(ast.parse(source), {name})):
        return int(ast.literal_eval(value))
    return None


class Rewriter:
    """Edits of one module."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self._data = source.encode()
        lines = self._data.splitlines(keepends=True)
        self._begins = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]

    def renamed_imports(self, names: Mapping[str, str]) -> Iterator[Edit]:
        """Edits of imports, and of uses of names that are called otherwise now."""
        uses: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from self._import_from(node, names, uses)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if new := names.get(alias.name):
                        yield self._edit(alias, _aliased(new, alias.asname))
                        if not alias.asname:
                            uses[alias.name] = new
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and (new := uses.get(_dotted(node))):
                yield self._edit(node, new)

    def renamed_members(
        self, classes: Collection[str], members: Mapping[str, str]
    ) -> Iterator[Edit]:
        """Edits of members that these classes define, and use by `self`, `cls` or `super()`."""
        for owner in _classes(self.tree, classes):
            for node in ast.walk(owner):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node in owner.body:
                    if new := members.get(node.name):
                        yield self._edit_name(node, new)
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node in owner.body:
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        if new := members.get(_dotted(target)):
                            yield self._edit(target, new)
                elif isinstance(node, ast.Attribute) and _is_own(node.value):
                    if new := members.get(node.attr):
                        edit = self._edit(node, new)
                        yield edit._replace(start=edit.end - len(node.attr.encode()))

    def raised_versions(self, classes: Collection[str], version: int) -> Iterator[Edit]:
        """Edits of the interface version that these classes declare."""
        for value in _versions(_classes(self.tree, classes)):
            yield self._edit(value, str(version))

    def _import_from(
        self, node: ast.ImportFrom, names: Mapping[str, str], uses: dict[str, str]
    ) -> Iterator[Edit]:
        lines: dict[str, list[str]] = {}
        is_changed = False
        for alias in node.names:
            old = f"{node.module}:{alias.name}"
            new = names.get(old) or f"{names.get(node.module or '', node.module)}:{alias.name}"
            module, _, name = new.partition(":")
            is_changed |= new != old
            lines.setdefault(module, []).append(_aliased(name, alias.asname))
            if name != alias.name and not alias.asname:
                uses[alias.name] = name
        new_lines = [f"from {module} import {', '.join(parts)}" for module, parts in lines.items()]
        if is_changed:
            yield self._edit(node, ("\n" + " " * node.col_offset).join(new_lines))

    def _edit_name(self, node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> Edit:
        start = self._place(node.lineno, node.col_offset)
        start += re.match(rb"(async\s+)?def\s+", self._data[start:]).end()  # type: ignore[union-attr]  # it is one
        return Edit(start, start + len(node.name.encode()), text)

    def _edit(self, node: ast.stmt | ast.expr | ast.alias, text: str) -> Edit:
        start = self._place(node.lineno, node.col_offset)
        return Edit(start, self._place(node.end_lineno or 0, node.end_col_offset or 0), text)

    def _place(self, line: int, column: int) -> int:
        return self._begins[line - 1] + column


def _aliased(name: str, alias: str | None) -> str:
    return f"{name} as {alias}" if alias else name


def _classes(tree: ast.AST, names: Collection[str]) -> Iterator[ast.ClassDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in names:
            yield node


def _versions(classes: Iterator[ast.ClassDef]) -> Iterator[ast.Constant]:
    """Values of `interface_version` in the bodies of classes."""
    for owner in classes:
        for node in owner.body:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            value = getattr(node, "value", None)
            if VERSION in map(_dotted, targets) and isinstance(value, ast.Constant):
                yield value


def _dotted(node: ast.AST | None) -> str:
    """`a.b` of a name or a chain of attributes; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _is_own(node: ast.expr) -> bool:
    """Return True for `self`, `cls` and `super()`."""
    return (
        _dotted(node.func) == "super"
        if isinstance(node, ast.Call)
        else _dotted(node) in {"self", "cls"}
    )
