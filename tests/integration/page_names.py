"""Reads the pages for names in back-ticks and looks them up in the code: modules, classes, attributes, calls.

Used by `test_page_names.py`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SPANS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCES = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
WORDS = re.compile(r"[A-Za-z_]\w*")
IDENTIFIER = re.compile(r"_?[A-Za-z]\w*")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def pages() -> list[Path]:
    """Every page of the repository, including those of the distributions."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/**/README.md")]
    return sorted(
        {page for page in found if not any(p[0] == "." for p in page.relative_to(ROOT).parts)}
    )


def spans(page: Path, but: re.Pattern[str] = FENCES) -> Iterator[str]:
    """Texts in back-ticks, outside blocks of code and outside what `but` matches."""
    return iter(SPANS.findall(but.sub("", FENCES.sub("", page.read_text(encoding="utf-8")))))


@dataclass(frozen=True)
class Definition:
    """Location of a class, a function or a method: its module, and the path inside."""

    module: str
    path: str

    def load(self) -> Any:
        found: Any = importlib.import_module(self.module)
        for part in self.path.split("."):
            found = (
                inspect.getattr_static(found, part) if part == "__init__" else getattr(found, part)
            )
        return found

    @property
    def is_method(self) -> bool:
        return "." in self.path


def sources() -> list[Path]:
    """The code of every distribution, and of `dev.py`."""
    return [*sorted(ROOT.glob("dev/*.py")), *sources_of_distributions()]


def sources_of_distributions() -> list[Path]:
    """The code of every distribution."""
    return [*sorted(ROOT.glob("core/src/**/*.py")), *sorted(ROOT.glob("[!.]*/*/src/**/*.py"))]


@functools.cache
def known_words() -> frozenset[str]:
    """Every identifier, and every word of a string, in code, metadata and tests: a short name must be one of them."""
    files = [
        *sources(),
        *ROOT.glob("[!.]*/**/pyproject.toml"),
        *ROOT.glob("[!.]*/**/tests/**/*.py"),
        *ROOT.glob("tests/*/*.py"),
    ]
    found: set[str] = set()
    for file in files:
        found.update(WORDS.findall(file.read_text(encoding="utf-8")))
    return frozenset(found)


@functools.cache
def definitions() -> dict[str, list[Definition]]:
    """Classes, functions and methods by their own name."""
    found: dict[str, list[Definition]] = defaultdict(list)
    for file in sources_of_distributions():
        parts = (
            file.relative_to(next(p for p in file.parents if p.name == "src")).with_suffix("").parts
        )
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        _collect(ast.parse(file.read_text(encoding="utf-8")).body, module, "", found)
    return found


def _collect(
    body: list[ast.stmt], module: str, prefix: str, found: dict[str, list[Definition]]
) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name].append(Definition(module, prefix + node.name))
        if isinstance(node, ast.ClassDef):
            _collect(node.body, module, f"{prefix}{node.name}.", found)


def exists(name: str) -> bool:
    """Return True if a dotted name that begins with one of our packages or classes can be resolved."""
    first, *rest = name.split(".")
    if first.startswith("tenonry"):
        return _from_module(name) is not None
    holders = [
        definition.load() for definition in definitions().get(first, []) if not definition.is_method
    ]
    return any(_has(holder, rest) for holder in holders)


def _from_module(name: str) -> Any:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        return found if _has(found, parts[count:]) else None
    return None


def _has(holder: Any, path: list[str]) -> bool:
    """Attributes, and fields that only instances have."""
    for part in path:
        if hasattr(holder, part):
            holder = getattr(holder, part)
            continue
        return part in _fields(holder) or _sets(holder, part)
    return True


def _fields(holder: Any) -> set[str]:
    annotations = {
        name for cls in getattr(holder, "__mro__", ()) for name in inspect.get_annotations(cls)
    }
    return annotations | set(getattr(holder, "model_fields", {}))


def _sets(holder: Any, name: str) -> bool:
    """Return True if the class or a base of it assigns `self.NAME`."""
    if isinstance(holder, ModuleType) or not inspect.isclass(holder):
        return False
    return any(
        f"self.{name}" in inspect.getsource(cls)
        for cls in holder.__mro__
        if cls.__module__.startswith("tenonry") and sys.modules.get(cls.__module__)
    )


def parse_call(text: str) -> ast.Call | None:
    """The call that a span shows, or None if it shows none; `name()` only marks the name of a function."""
    try:
        node = ast.parse(text.replace("…", "..."), mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    return node if node.args or node.keywords else None


def binds(call: ast.Call) -> bool | None:
    """Return True if some definition of that name accepts these arguments; None if the name is not ours."""
    *owner, name = ast.unparse(call.func).split(".")
    candidates = definitions().get(name, [])
    if owner and owner[-1] in definitions():
        candidates = [
            candidate for candidate in candidates if candidate.path.split(".")[-2:-1] == owner[-1:]
        ] or candidates
    if not candidates:
        return None
    return any(_takes(candidate, call) for candidate in candidates)


def _takes(definition: Definition, call: ast.Call) -> bool:
    target = definition.load()
    if isinstance(target, property):
        return False
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return True
    has_gap = any(isinstance(arg, ast.Constant) and arg.value is ... for arg in call.args)
    has_gap = has_gap or any(isinstance(arg, ast.Starred) for arg in call.args)
    positional = [
        arg for arg in call.args if not (isinstance(arg, ast.Constant) and arg.value is ...)
    ]
    named = {keyword.arg: None for keyword in call.keywords if keyword.arg}
    bind = signature.bind_partial if has_gap else signature.bind
    needs_self = definition.is_method and next(iter(signature.parameters), "") == "self"
    try:
        bind(*[None] * (len(positional) + needs_self), **named)
    except TypeError:
        return False
    return True
