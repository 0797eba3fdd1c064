"""Import graph of the Python files of this tree, by syntax tree; nothing is imported."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from dev import paths
from dev.tree import distributions, metadata

# A module of a distribution in a string, as plugins and the testkit's suites name classes.
NAMED = re.compile(r"tenonry\w*(\.\w+)*(:\w+)?")
# What a server of the demo model loads without being told.
LOADED_WITH = {"demo": ("demo", "auto", "torch", "text", "batching", "uni", "fork", "serve")}
CONFTEST = "conftest.py"
SKIPPED = {"__pycache__", "build", "dist"}


class ImportGraph:
    """Imports among sources, tests and the modules beside tests.

    A test file also imports the `conftest.py` of each folder above it, and the modules that it names in a string: by
    their own name, or as an entry point, which is how servers are told what to load.
    """

    def __init__(self) -> None:
        self.files = sorted({file for folder in _folders() for file in _python_files(folder)})
        self._modules = dict(_module_names())
        self._names = {file: name for name, file in self._modules.items()}
        self._helpers: dict[str, list[Path]] = defaultdict(list)
        for file in self.files:
            if is_test_code(file):
                self._helpers[file.parent.name if file.stem == "__init__" else file.stem].append(
                    file
                )
        self._entry_points = _entry_points(self._modules)
        self._importers: dict[Path, set[Path]] = defaultdict(set)
        for file in self.files:
            for imported in self._imports(file):
                self._importers[imported].add(file)

    def importers(self, changed: Iterable[Path], *, is_direct: bool = False) -> set[Path]:
        """Return `changed` and the files that import one of them, directly or at all."""
        found = set(changed)
        pending = list(found)
        while pending:
            new = self._importers[pending.pop()] - found
            found |= new
            if not is_direct:
                pending += new
        return found

    def module_of(self, file: Path) -> str:
        """Return the dotted name of a source, or nothing for other files."""
        return self._names.get(file, "")

    def _imports(self, file: Path) -> Iterator[Path]:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))
        for name in _imported(nodes, self._package(file)):
            yield from self._files_of(name, file)
        if not is_test_code(file):
            return
        yield from (folder / CONFTEST for folder in file.parents if (folder / CONFTEST).exists())
        for text in {node.value for node in nodes if isinstance(node, ast.Constant)}:
            if isinstance(text, str):
                yield from self._named(text, file)

    def _named(self, text: str, file: Path) -> Iterator[Path]:
        """Yield what a string of a test names: a module or class, or a plugin, also behind `--flag=`."""
        if NAMED.fullmatch(text):
            yield from self._files_of(text.partition(":")[0], file)
        plugin = text.rpartition("=")[2]
        for name in LOADED_WITH.get(plugin, (plugin,)):
            yield from self._entry_points.get(name, ())

    def _package(self, file: Path) -> str:
        """Return the package in which relative imports of `file` begin."""
        name = self.module_of(file)
        return name if file.stem == "__init__" else name.rpartition(".")[0]

    def _files_of(self, name: str, importer: Path) -> Iterator[Path]:
        """Yield the files of module `name` and of its packages; of modules beside tests those nearest to `importer`."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            if file := self._modules.get(".".join(parts[:length])):
                yield file
        if parts[0] not in self._modules and is_test_code(importer):
            known = self._helpers.get(parts[0], [])
            near = [file for file in known if file.parent in importer.parents]
            yield from near or known
            if len(parts) > 1:
                yield from self._helpers.get(parts[-1], [])


def is_test_code(file: Path) -> bool:
    """Return True for files of a folder `tests`, but for the testkit's own sources and the packages of tutorials."""
    inside = file.relative_to(paths.ROOT).parts
    return "tests" in inside and "src" not in inside and inside[0] != "docs"


def is_test(file: Path) -> bool:
    """Return True for files that pytest collects."""
    return is_test_code(file) and file.name.startswith("test_") and file.suffix == ".py"


def _folders() -> list[Path]:
    return [*distributions().values(), paths.ROOT / "tests", paths.ROOT / "dev"]


def _python_files(folder: Path) -> list[Path]:
    files = folder.rglob("*.py")
    return [file for file in files if not SKIPPED.intersection(file.relative_to(folder).parts)]


def _module_names() -> Iterator[tuple[str, Path]]:
    """Yield every module of the distributions, and of this package, with its file."""
    for root in [*(folder / "src" for folder in distributions().values()), paths.ROOT]:
        for file in _python_files(root if root != paths.ROOT else root / "dev"):
            parts = file.relative_to(root).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _entry_points(modules: dict[str, Path]) -> dict[str, set[Path]]:
    """Return the modules that each name of an entry point stands for."""
    found: dict[str, set[Path]] = defaultdict(set)
    for folder in distributions().values():
        for names in metadata(folder).get("entry-points", {}).values():
            for name, value in names.items():
                if file := modules.get(value.partition(":")[0]):
                    found[name].add(file)
    return found


def _imported(nodes: list[ast.AST], package: str) -> Iterator[str]:
    """Yield the names that `nodes` import: of modules, and of what may be a module in them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
