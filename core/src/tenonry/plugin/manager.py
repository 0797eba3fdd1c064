"""Chooses plugins: one resolver for every kind, at start-up, in the process that starts the engines.

`module:Class` and `path.py:Class` are taken as written; any other name is asked of the hooks, where the kernel's own
answer comes last: the entry-point group.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pluggy

from tenonry.config import EngineConfig, PluginChoice, PluginPolicy
from tenonry.errors import ConfigError, ModelError, PluginError, PluginFault, TenonryError
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.plugin import PluginContext
from tenonry.plugin import hookspecs
from tenonry.plugin.discovery import (
    check_requirements,
    distribution_of_module,
    find_entry_point,
    installed,
    not_found,
)
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.plan import PlanEntry, PluginPlan, file_module_name, import_target


def _answer_from(kind: str) -> Any:
    """The kernel's own answer, asked last: a name is what an entry point says it is."""

    def answer(name: str) -> str | None:
        entry = find_entry_point(kind, name)
        return entry.target if entry else None

    return staticmethod(hookspecs.hookimpl(trylast=True)(answer))


_EntryPointHooks = type(
    "_EntryPointHooks", (), {kind.hook: _answer_from(kind.name) for kind in KINDS.values()}
)


class PluginManager:
    """Hook modules and the resolver. `discover=False` registers no installed hook module (tests, embedding)."""

    def __init__(self, policy: PluginPolicy | None = None, *, discover: bool = True) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self._pluggy.register(_EntryPointHooks, name="tenonry")
        self.hook: Any = self._pluggy.hook
        self.hook_modules: list[PluginRecord] = []
        if discover:
            self._load_hook_modules(policy or PluginPolicy())

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook. Our own errors pass; of any other the hook module that raised it is named (PluginFault)."""
        caller = getattr(self.hook, hook)
        try:
            return caller(**arguments)
        except TenonryError:
            raise
        except Exception as error:
            name = _culprit(caller, error)
            origins = {one.name: (one.distribution, one.version) for one in self.hook_modules}
            raise PluginFault(name, *origins.get(name, ("", "")), hook, error) from error

    def register(self, module: object, name: str | None = None) -> None:
        """Add a hook module. Raises PluginError for a misspelt hook or wrong arguments, naming the module."""
        label = name or getattr(module, "__name__", repr(module))
        try:
            self._pluggy.register(module, name=name)
            self._pluggy.check_pending()
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._pluggy.is_registered(module):
                self._pluggy.unregister(module)
            raise PluginError(f"hook module {label}: {' '.join(str(error).split())}") from error

    def _load_hook_modules(self, policy: PluginPolicy) -> None:
        names = sorted({entry.name for entry in installed("hook_module")})
        unknown = sorted({*(policy.allow or ()), *policy.disable}.difference(names))
        if unknown:
            raise ConfigError(
                f"plugins.allow/disable name {unknown}, which are not installed; installed: {names}"
            )
        for name in names:
            if name in policy.disable or (policy.allow is not None and name not in policy.allow):
                continue
            try:
                entry = _installed_entry("hook_module", PluginChoice(name=name))
                module = import_target(entry)
            except PluginError as error:
                raise type(error)(
                    f"{error}; uninstall it, or disable it: --disable-plugin {name}"
                ) from error
            self.register(module, name=name)
            self.hook_modules.append(entry.record())

    def resolve(self, kind: str, choice: PluginChoice, config: EngineConfig) -> PlanEntry:
        """Find the plugin of one of the kernel's kinds and check it: requirements, class, options."""
        entry = self._find(kind, choice, config)
        entry.load_options(entry.load())
        return entry

    def _find(self, kind: str, choice: PluginChoice, config: EngineConfig) -> PlanEntry:
        if ":" in choice.name:
            return qualified_entry(kind, choice)
        target = self.call(KINDS[kind].hook, name=choice.name, config=config)
        if target is None:
            raise not_found(kind, choice.name)
        if not isinstance(target, str) or ":" not in target:
            raise PluginError(
                f"{KINDS[kind].hook} answered {target!r} for '{choice.name}'; hooks answer with names: \"module:Class\""
            )
        owners = (one for one in installed(kind) if (one.name, one.target) == (choice.name, target))
        return target_entry(kind, choice, target, next(owners, None))

    def plan(self, config: EngineConfig, *, launcher: bool = True) -> PluginPlan:
        """Resolve every kind that the configuration names; raises on the first that fails."""
        fields = [
            kind for kind in KINDS if kind != "stat_logger" and (launcher or kind != "launcher")
        ]
        chosen: list[tuple[str, PluginChoice | None]] = [
            (kind, getattr(config, kind)) for kind in fields
        ]
        chosen += [("stat_logger", choice) for choice in config.stat_loggers]
        entries = tuple(
            self.resolve(kind, choice, config) for kind, choice in chosen if choice is not None
        )
        plan = PluginPlan(entries, tuple(self.hook_modules))
        self.call("tenonry_configured", config=config)
        return plan

    def resolve_model(self, config: EngineConfig) -> ModelInfo:
        """Ask the hooks for the model's facts. Raises ModelError when none knows the model."""
        info: ModelInfo | None = self.call("tenonry_resolve_model", config=config)
        if info is None:
            known = ", ".join(entry.name for entry in installed("model")) or "none"
            raise ModelError(
                f"model '{config.model}' was found by no plugin; registered names: {known}; a folder or hub id needs: "
                "pip install tenonry-hf-hub"
            )
        return info


def _culprit(caller: pluggy.HookCaller, error: BaseException) -> str:
    """The hook module whose implementation stands in the traceback."""
    names = {
        getattr(one.function, "__code__", None): one.plugin_name for one in caller.get_hookimpls()
    }
    frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return next((names[code] for code in frames if code in names), caller.name)


def qualified_entry(kind: str, choice: PluginChoice) -> PlanEntry:
    """The entry of `module:Class` or `path.py:Class`."""
    left, _, right = choice.name.rpartition(":")
    if left.endswith(".py"):
        return _file_entry(kind, choice, left, right)
    if left in {"__main__", ""}:
        raise PluginError(
            f"{kind} '{choice.name}': a class of __main__ cannot be imported by other processes; give the file as "
            f"path.py:{right or 'Class'}, or put it into a module"
        )
    return target_entry(kind, choice, choice.name)


def _file_entry(kind: str, choice: PluginChoice, path: str, attribute: str) -> PlanEntry:
    try:
        source = Path(path).read_text("utf-8")
    except OSError as error:
        raise PluginError(
            f"{kind} '{choice.name}': file {path} cannot be read: {error.strerror}"
        ) from None
    except UnicodeDecodeError as error:
        raise PluginError(f"{kind} '{choice.name}': file {path} is not UTF-8: {error}") from None
    return PlanEntry(
        kind=kind,
        name=choice.name,
        target=f"{file_module_name(source)}:{attribute}",
        source=source,
        path=str(Path(path).resolve()),
        options=choice.options,
    )


def target_entry(
    kind: str, choice: PluginChoice, target: str, owner: PluginRecord | None = None
) -> PlanEntry:
    """The entry of an importable target; its distribution's requirements are checked before any import.

    `owner` is the entry point that named the target, if one did.
    """
    module = target.partition(":")[0]
    distribution, version = (
        (owner.distribution, owner.version) if owner else distribution_of_module(module)
    )
    check_requirements(distribution)
    return PlanEntry(
        kind=kind,
        name=choice.name,
        target=target,
        distribution=distribution,
        version=version,
        options=choice.options,
    )


def _installed_entry(kind: str, choice: PluginChoice) -> PlanEntry:
    """The entry of an entry point's name. Raises PluginNotFound."""
    found = find_entry_point(kind, choice.name)
    if found is None:
        raise not_found(kind, choice.name)
    return target_entry(kind, choice, found.target, found)


def resolve_owned(kind: str, name: str) -> tuple[Any, PlanEntry]:
    """The resolver for points that an owner opens (`tenonry.plugin.kinds.OWNED_GROUPS`): same names, checks and errors.

    Called in the owner's process. Returns the imported object, whose type the owner checks, and where it came from.
    """
    choice = PluginChoice.model_construct(name=name)  # any text may be asked for
    entry = qualified_entry(kind, choice) if ":" in name else _installed_entry(kind, choice)
    return import_target(entry), entry


def build_plugin(entry: PlanEntry, context: PluginContext) -> Any:
    """An instance of the entry's class; its options, validated, join the context. Raises PluginError."""
    cls: Any = entry.load()
    context.options = entry.load_options(cls)
    with blamed(entry, "its constructor"):
        return cls(context)


@contextlib.contextmanager
def blamed(entry: PlanEntry, call: str) -> Iterator[None]:
    """Whatever a plugin raises in this block names it (PluginFault); our own errors say enough already."""
    try:
        yield
    except TenonryError:
        raise
    except Exception as error:
        raise PluginFault(entry.name, entry.distribution, entry.version, call, error) from error
