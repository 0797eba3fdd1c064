"""The page of public modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reference_pages.text import NOTICE, first_sentence
from tenonry_testkit.import_contract import PUBLIC, PUBLIC_OF_WORKER_TORCH


def public_modules_page() -> str:
    """Every module of the kernel and of the worker `torch` that plugins may import, with its public names."""
    parts = ["# Public modules\n", NOTICE]
    parts += [
        "A plugin imports these modules and no others; `tenonry_testkit.import_contract` holds it to them. A name that",
        "leaves this page, or changes its meaning, is a change of [version](../explanation/versioning.md).\n",
        "## The kernel\n",
        *_module_table(PUBLIC),
        "\n## The worker `torch`\n",
        'For runner features, model passes and device parts; the contract has `package = "tenonry_worker_torch"`.',
        "Like their points, they are alpha.\n",
        *_module_table(PUBLIC_OF_WORKER_TORCH),
    ]
    return "\n".join(parts) + "\n"


def _module_table(entries: Sequence[str]) -> list[str]:
    lines = ["| module | what it holds | names |", "|---|---|---|"]
    for module in public_modules(entries):
        summary = first_sentence(Path(module.__file__))
        names = ", ".join(f"`{name}`" for name in _public_names(module))
        lines.append(f"| `{module.__name__}` | {summary} | {names} |")
    return lines


def public_modules(entries: Sequence[str] = PUBLIC) -> list[Any]:
    """Import them, each once, in the order of the contract."""
    found: dict[str, Any] = {}
    for entry in entries:
        package = entry.removesuffix(".*")
        if not entry.endswith(".*"):
            found[entry] = importlib.import_module(entry)
            continue
        folder = importlib.import_module(package)
        for module in sorted(each.name for each in pkgutil.iter_modules(folder.__path__)):
            found[f"{package}.{module}"] = importlib.import_module(f"{package}.{module}")
    return list(found.values())


def _public_names(module: Any) -> list[str]:
    """Public names of a module: `__all__`, or all names defined at its top level."""
    if own := getattr(module, "__all__", None):
        return sorted(own)
    names: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and name != "logger"]
