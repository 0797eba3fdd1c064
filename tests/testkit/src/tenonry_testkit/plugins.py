"""Installs plugins for one test: temporary distributions in a folder, and a plugin manager that sees only those.

Distributions are plain files like pip's: modules, and a dist-info with METADATA and entry_points.txt, so that the
resolver is tested with realistic input. Test process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from tenonry.config import PluginPolicy
from tenonry.plugin import discovery
from tenonry.plugin.manager import PluginManager


class TmpPlugins:
    """A context manager around one folder on `sys.path`; on leaving, its modules and metadata are forgotten.

    Unless `see_installed`, entry points of installed distributions are hidden, so that the test controls all names.
    """

    def __init__(self, folder: Path, *, see_installed: bool = False) -> None:
        self.folder = folder
        self._see_installed = see_installed
        self._entry_points = importlib.metadata.entry_points

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        sys.path.insert(0, str(self.folder))
        if not self._see_installed:
            importlib.metadata.entry_points = self._own_entry_points  # type: ignore[assignment]
        self.forget_caches()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        importlib.metadata.entry_points = self._entry_points
        sys.path.remove(str(self.folder))
        for name, module in list(sys.modules.items()):
            if self._is_own(module):
                del sys.modules[name]
        self.forget_caches()

    # ------------------------------------------------------------------ installing
    def distribution(
        self,
        name: str,
        version: str = "1.0",
        *,
        requires: Iterable[str] = (),
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        summary: str = "A distribution for one test.",
    ) -> Path:
        """Write a distribution; returns its dist-info folder.

        `requires`: lines of Requires-Dist, as "tenonry>=0.1,<0.2". `entry_points`: group → name → "module:attribute".
        `modules`: module name (dots make packages) → source text, which may be indented.
        """
        for module, source in (modules or {}).items():
            self.module(module, source)
        info = self.folder / f"{re.sub(r'[-.]+', '_', name)}-{version}.dist-info"
        info.mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            f"Summary: {summary}",
        ]
        lines += [f"Requires-Dist: {line}" for line in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
        groups = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
            for group, names in (entry_points or {}).items()
        ]
        (info / "entry_points.txt").write_text("\n".join(groups), "utf-8")
        (info / "INSTALLER").write_text("testkit\n", "utf-8")
        (info / "top_level.txt").write_text(
            "".join(f"{m.partition('.')[0]}\n" for m in modules or {}), "utf-8"
        )
        (info / "RECORD").write_text("", "utf-8")
        self.forget_caches()
        return info

    def module(self, name: str, source: str) -> Path:
        """Write a module that can be imported now; returns its file."""
        *parents, last = name.split(".")
        folder = self.folder
        for parent in parents:
            folder /= parent
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        path = folder / f"{last}.py"
        path.write_text("from __future__ import annotations\n" + textwrap.dedent(source), "utf-8")
        importlib.invalidate_caches()
        return path

    # ------------------------------------------------------------------ resolving
    def manager(
        self, policy: PluginPolicy | None = None, *, discover: bool = True
    ) -> PluginManager:
        """Return a plugin manager that sees only the plugins of this test; `discover`: with its hook modules."""
        return PluginManager(policy, discover=discover)

    def import_module(self, name: str) -> ModuleType:
        """Import one of this folder's modules."""
        return importlib.import_module(name)

    def forget_caches(self) -> None:
        """Invalidate every cache between files and the resolver."""
        importlib.invalidate_caches()
        for function in vars(discovery).values():
            remembered = getattr(function, "__wrapped__", None)
            if hasattr(remembered, "cache_clear"):
                remembered.cache_clear()

    # ------------------------------------------------------------------ details
    def _own_entry_points(self, **conditions: Any) -> importlib.metadata.EntryPoints:
        found = [
            point
            for dist in importlib.metadata.distributions(path=[str(self.folder)])
            for point in dist.entry_points
        ]
        return importlib.metadata.EntryPoints(found).select(**conditions)

    def _is_own(self, module: ModuleType) -> bool:
        return str(getattr(module, "__file__", None) or "").startswith(str(self.folder))


@contextlib.contextmanager
def fake_model_installed(folder: Path) -> Iterator[TmpPlugins]:
    """Make the models of `fakes.model` available, in addition to installed ones, to processes with `folder` on their
    path.
    """
    with TmpPlugins(folder, see_installed=True) as plugins:
        plugins.distribution(
            "fake-model",
            entry_points={"tenonry.plugins": {"fake-model": "tenonry_testkit.fakes.model"}},
        )
        yield plugins
