"""Writes `public-api.txt`: every public name with its fields and signature, read from the source without importing it.

A test compares the file with the code. After a change that is meant:

    python docs/reference/public_api.py --renew "What changed, in one sentence for authors of plugins."

This writes the file, and the sentence into `CHANGELOG.md`. Without arguments it prints the differences.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from tenonry_testkit.import_contract import PUBLIC
from tenonry_testkit.suites import SUITES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILE = HERE / "public-api.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
# What else is public besides modules of the kernel: libraries of schedulers, and what plugins of points derive from.
FURTHER = (
    "tenonry_scheduling",
    "tenonry_kvcache",
    "tenonry_scheduler_batching",
    "tenonry_scale_out.load_balancer",
    "tenonry_drafters.base",
    "tenonry_grammars.base",
    "tenonry_images.base",
    "tenonry_output_parsers.base",
    "tenonry_output_parsers.events",
)
INDENT = "    "


def source_of(module: str) -> Path:
    """File of a module of this repository."""
    package, *rest = module.split(".")
    (folder,) = [*ROOT.glob(f"core/src/{package}"), *ROOT.glob(f"*/*/src/{package}")]
    path = folder.joinpath(*rest)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def modules() -> list[str]:
    """Public modules, sorted."""
    found: set[str] = {*FURTHER, *(suite.module for suite in SUITES.values())}
    for entry in PUBLIC:
        package = entry.removesuffix(".*")
        if entry == package:
            found.add(entry)
            continue
        names = source_of(package).parent.glob("*.py")
        found |= {f"{package}.{file.stem}" for file in names if file.stem != "__init__"}
    return sorted(found)


def snapshot() -> str:
    """The contents of the file."""
    lines = ["# Written by public_api.py: what plugins may rely on."]
    for module in modules():
        lines += ["", f"{module}", *(INDENT + line for line in described(module))]
    return "\n".join(lines) + "\n"


def described(module: str) -> list[str]:
    """The public names of a module: those of `__all__`, wherever they are defined, or those that it defines."""
    tree = ast.parse(source_of(module).read_text("utf-8"))
    listed = _all(tree)
    if listed is None:
        names = [name for name in _names(tree.body) if name[0] != "_" and name != "logger"]
        return [line for name in names for line in _definition(tree.body, name)]
    lines = []
    for name in sorted(listed):
        where = _origin(tree, name)
        lines += [f"{name} from {where}"] if where else _definition(tree.body, name)
    return lines


def _all(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and "__all__" in _names([node]):
            return [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
    return None


def _origin(tree: ast.Module, name: str) -> str:
    """Module from which a package hands a name on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if name in {each.asname or each.name for each in node.names}:
                return node.module
    return ""


def _names(body: list[ast.stmt]) -> list[str]:
    """Names that statements define, each once."""
    found: dict[str, None] = {}
    for node in body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                found[name] = None
            case ast.Assign(targets=targets):
                found |= {each.id: None for each in targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = None
    return list(found)


def _definition(body: list[ast.stmt], name: str) -> list[str]:
    for node in body:
        if name in _names([node]):
            return list(_lines(node, name))
    return [name]


def _lines(node: ast.stmt, name: str) -> Iterator[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield _signature(node)
        case ast.ClassDef():
            keywords = [f"{each.arg}={ast.unparse(each.value)}" for each in node.keywords]
            bases = ", ".join([*map(ast.unparse, node.bases), *keywords])
            yield f"class {name}({bases})" if bases else f"class {name}"
            for member in _names(node.body):
                is_special = member in {"__init__", "__call__", "__enter__", "__exit__"}
                if is_special or (member[0] != "_" and not member.startswith("test_")):
                    yield from (INDENT + line for line in _definition(node.body, member))
        case ast.AnnAssign(annotation=annotation, value=value):
            default = "" if value is None else f" = {_short(value)}"
            yield f"{name}: {ast.unparse(annotation)}{default}"
        case _:
            yield name


def _short(value: ast.expr) -> str:
    """A default, as far as it is a plain value: how others are made is no promise."""
    return ast.unparse(value) if isinstance(value, ast.Constant | ast.Tuple | ast.UnaryOp) else "…"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    known = {"property", "classmethod", "staticmethod", "abstractmethod"}
    marks = [each.id for each in node.decorator_list if isinstance(each, ast.Name)]
    prefix = "".join(f"@{mark} " for mark in marks if mark in known)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{prefix}{kind} {node.name}({ast.unparse(node.args)}){returns}"


def differences() -> list[str]:
    """Lines that the file lacks, and those that it has too many; with the module above them."""
    before = FILE.read_text("utf-8").splitlines() if FILE.is_file() else []
    lines = difflib.unified_diff(
        before, snapshot().splitlines(), "declared", "code", lineterm="", n=1
    )
    return list(lines)


def main() -> int:
    """Print the differences, or renew the file; returns the exit status."""
    if sys.argv[1:2] == ["--renew"]:
        sentence = " ".join(sys.argv[2:]).strip()
        if not sentence:
            sys.stderr.write('say what changed: --renew "One sentence for authors of plugins."\n')
            return 2
        FILE.write_text(snapshot(), "utf-8")
        text = CHANGELOG.read_text("utf-8")
        head = "### Changed\n\n"
        CHANGELOG.write_text(text.replace(head, f"{head}- Public API: {sentence}\n", 1), "utf-8")
        return 0
    found = differences()
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
