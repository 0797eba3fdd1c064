"""The plugin plan: the chosen class of each kind. Made once in the front end and sent as text to every process, which
imports by name without discovery.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import operator
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import PluginError, describe_cause
from tenonry.info import PluginRecord
from tenonry.plugin.checks import check_plugin
from tenonry.plugin.kinds import EVERY_INSTALLED, KINDS, STEP_OBSERVERS

LOOSE: list[str] = []  # imported files, whose folders were added to the path


class PluginPlan(msgspec.Struct, frozen=True):
    """All chosen plugins, request checks and step observers, and the hook modules that were active while choosing.

    `secrets`: plugin settings excluded from logs.
    """

    entries: tuple[PluginRecord, ...] = ()
    hook_modules: tuple[PluginRecord, ...] = ()
    secrets: tuple[str, ...] = ()

    def find(self, kind: str) -> PluginRecord | None:
        return next(iter(self.all(kind)), None)

    def get(self, kind: str) -> PluginRecord:
        if entry := self.find(kind):
            return entry
        raise PluginError(f"the plan has no {kind}; it names {[one.kind for one in self.entries]}")

    def all(self, kind: str) -> list[PluginRecord]:
        return [entry for entry in self.entries if entry.kind == kind]

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> PluginPlan:
        return msgspec.json.decode(text, type=PluginPlan)

    def records(self) -> tuple[PluginRecord, ...]:
        """Every active plugin, without data for processes of the run alone: options can be secrets."""
        return (*(entry.public() for entry in self.entries), *self.hook_modules)

    def load_request_checks(self) -> tuple[Any, ...]:
        """Import the functions of `tenonry.interfaces.request_check`."""
        return tuple(map(import_target, self.all("request_check")))

    def of_engines(self) -> dict[str, str]:
        """Return the plugins that all engines must share: kind → name and class of each."""
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.kind == STEP_OBSERVERS.kind:
                continue  # specific to each node, without effect on others
            if entry.kind not in KINDS or KINDS[entry.kind].lives_in != "front end":
                found.setdefault(entry.kind, []).append(f"'{entry.name}' ({entry.target})")
        return {kind: ", ".join(names) for kind, names in found.items()}

    def versions(self) -> dict[str, str]:
        """Versions found by the process that made the plan: distribution → version."""
        return {entry.distribution: entry.version for entry in self.entries if entry.distribution}

    def versions_here(self) -> dict[str, str]:
        """Versions found by this process: distribution → version, "missing" without one."""
        found = {}
        for name in self.versions():
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "missing"
        return found


class _TextLoader(importlib.abc.SourceLoader):
    """Loads a module from text in the plan; tracebacks still show its lines."""

    def __init__(self, entry: PluginRecord) -> None:
        self._entry = entry

    def get_filename(self, fullname: str) -> str:
        return self._entry.path

    def get_data(self, path: str | bytes) -> bytes:
        return self._entry.source.encode()


def _import_text(name: str, entry: PluginRecord) -> None:
    """Import a loose file. It may import modules of its folder; installed modules have precedence.

    Raises ImportError if the folder of another loose file has a module of the same name.
    """
    if name in sys.modules:
        return
    folder = Path(entry.path).parent
    for file in folder.glob("*.py"):
        is_imported = re.search(rf"(?m)^\s*(from|import)\b.*\b{file.stem}\b", entry.source)
        for path in LOOSE:
            other = Path(path).with_name(file.name)
            if is_imported and other.exists() and not other.samefile(file):
                raise ImportError(
                    f"it imports {file}, and beside {path} there is {other}: they would be one module; rename one of "
                    "them"
                )
    LOOSE.append(entry.path)
    sys.path.append(str(folder))
    loader = _TextLoader(entry)
    spec: Any = importlib.util.spec_from_loader(name, loader)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def import_target(entry: PluginRecord) -> Any:
    """Import the "module:Class", or the whole module, of a record. Raises PluginError with the plugin and the cause."""
    module_name, colon, attribute = entry.target.partition(":")
    if module_name in {"__main__", "", *sys.stdlib_module_names}:
        raise PluginError(
            f"{entry.label()}: a class of __main__, or of a module with a name of the standard library, cannot be "
            f"imported by other processes; give the file as path.py:{attribute or 'Class'}, or rename the module"
        )
    try:
        if entry.source:
            _import_text(module_name, entry)
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        text = f"{entry.label()} cannot be imported: {describe_cause(error)}; fix its module"
        raise PluginError(text) from error
    if not colon:
        return module
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        raise PluginError(
            f"{entry.label()} has no '{attribute}'; {entry.path or module_name} defines "
            f"{[one for one, its in vars(module).items() if module_name in str(getattr(its, '__module__', ''))]}"
        ) from None


def load_class(record: PluginRecord) -> Any:
    """Import a plugin and, for a kernel kind, check it. Raises PluginError with the plugin and its origin."""
    found = import_target(record)
    for point in (*KINDS.values(), *EVERY_INSTALLED):
        if point.kind == record.kind:
            check_plugin(found, record, point)
    return found
