"""The plugin plan: which class was chosen for each kind. Made once in the front end, sent as text to every process,
which imports by name and never rediscovers.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.metadata
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from tenonry.errors import PluginError, PluginIncompatible
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import Plugin
from tenonry.plugin.kinds import KINDS
from tenonry.sources import explain


class PlanEntry(PluginRecord, frozen=True, kw_only=True):
    """One chosen plugin, with what only the processes of a run may know.

    `target` is "module:Class"; for a plugin in a loose file `source` and `path` hold its text and where it was read,
    and the module is named after the text's sha256.
    """

    source: str = ""
    path: str = ""
    options: dict[str, Any] = msgspec.field(default_factory=dict)

    def label(self) -> str:
        origin = f"{self.distribution} {self.version}" if self.distribution else "no distribution"
        return f"{self.kind.replace('_', ' ')} '{self.name}' ({self.path or f'{self.target}, {origin}'})"

    def record(self) -> PluginRecord:
        """What anybody may know: options can be secrets."""
        return PluginRecord(self.kind, self.name, self.target, self.distribution, self.version)

    def load(self) -> type[Plugin[Any]]:
        """Import the class and check it against its interface. Raises PluginError with the plugin and its origin."""
        cls: type[Plugin[Any]] = import_target(self)
        check_class(cls, self)
        return cls

    def load_options(self, cls: type[Plugin[Any]]) -> BaseModel:
        """The validated options. Raises PluginError naming each bad key."""
        try:
            return cls.Options.model_validate(self.options)
        except ValidationError as error:
            known = list(cls.Options.model_fields)
            raise PluginError(
                f"options of {self.label()} are not valid: {explain(error, known)}; "
                f"known options: {', '.join(known) or 'none'}"
            ) from None


class PluginPlan(msgspec.Struct, frozen=True):
    """All chosen plugins, and the hook modules that were active while choosing."""

    entries: tuple[PlanEntry, ...] = ()
    hook_modules: tuple[PluginRecord, ...] = ()

    def find(self, kind: str) -> PlanEntry | None:
        return next((entry for entry in self.entries if entry.kind == kind), None)

    def get(self, kind: str) -> PlanEntry:
        entry = self.find(kind)
        if entry is None:
            raise PluginError(
                f"the plan has no {kind}; it names {[entry.kind for entry in self.entries]}"
            )
        return entry

    def all(self, kind: str) -> list[PlanEntry]:
        return [entry for entry in self.entries if entry.kind == kind]

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str) -> PluginPlan:
        return msgspec.json.decode(text, type=PluginPlan)

    def records(self) -> tuple[PluginRecord, ...]:
        return (*(entry.record() for entry in self.entries), *self.hook_modules)

    def of_engines(self) -> dict[str, str]:
        """What every engine must have alike: kind → name and class."""
        kinds = {kind.name for kind in KINDS.values() if kind.lives_in != "front end"}
        return {
            entry.kind: f"'{entry.name}' ({entry.target})"
            for entry in self.entries
            if entry.kind in kinds
        }

    def versions(self) -> dict[str, str]:
        """Distribution → version, as the process that made the plan found them."""
        return {entry.distribution: entry.version for entry in self.entries if entry.distribution}

    def versions_here(self) -> dict[str, str]:
        """Distribution → version, as this process finds them ("missing" if it does not)."""
        found = {}
        for name in self.versions():
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = "missing"
        return found


class _TextLoader(importlib.abc.SourceLoader):
    """Loads a module from text that travelled in the plan, so that tracebacks still show its lines."""

    def __init__(self, source: str, path: str) -> None:
        self._source, self._path = source, path

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._source.encode()


def file_module_name(source: str) -> str:
    """The module name of a loose file: the same text is the same module, wherever it came from."""
    return f"tenonry_file_{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def _import_text(name: str, entry: PlanEntry) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    loader = _TextLoader(entry.source, entry.path)
    spec = ModuleSpec(name, loader, origin=entry.path)
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_target(entry: PlanEntry) -> Any:
    """Import "module:Class", or a whole module, of an entry. Raises PluginError that names the plugin and the cause."""
    module_name, colon, attribute = entry.target.partition(":")
    try:
        module = (
            _import_text(module_name, entry)
            if entry.source
            else importlib.import_module(module_name)
        )
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{entry.label()} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found: Any = module
    for part in attribute.split(".") if colon else ():
        found = getattr(found, part, None)
        if found is None:
            own = [
                name
                for name, one in vars(module).items()
                if module_name in str(getattr(one, "__module__", ""))
            ]
            raise PluginError(
                f"{entry.label()} has no '{attribute}'; {entry.path or module_name} defines {own}"
            )
    return found


def check_class(cls: Any, entry: PlanEntry) -> None:
    """The class must subclass its interface, implement all of it, and speak a version that the kernel can drive.

    Points that an owner opens have no interface here: the owner checks what it gets.
    """
    kind = KINDS.get(entry.kind)
    if kind is None:
        return
    interface, supported = kind.load_interface()
    if not (isinstance(cls, type) and issubclass(cls, interface)):
        raise PluginIncompatible(
            f"{entry.label()} is not a subclass of {kind.interface.replace(':', '.')}"
        )
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise PluginIncompatible(
            f"{entry.label()} does not implement {', '.join(missing)} of {interface.__name__}"
        )
    if cls.interface_version not in supported:
        raise PluginIncompatible(
            f"{entry.label()} speaks version {cls.interface_version} of the {kind.name} interface; this kernel can "
            f"drive {sorted(supported)}"
        )
