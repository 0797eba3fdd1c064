"""Chooses plugins: one resolver for every kind, at start-up, in the process that starts the engines.

`module:Class` and `path.py:Class` are taken as written, on alpha points, too. Any other name is resolved by the hook of
its kind, whose last implementation is the kernel's own: the entry points of the kind's group.
"""

from __future__ import annotations

import contextlib
import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pluggy
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, PluginChoice, PluginPolicy, fact, nearest
from tenonry.errors import (
    ConfigError,
    ModelError,
    PluginError,
    PluginFault,
    PluginIncompatible,
    TenonryError,
    is_interrupt,
)
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.plugin import PluginContext, PluginSettings
from tenonry.plugin import hookspecs
from tenonry.plugin.checks import check_plugin, load_options, where, wrong_class
from tenonry.plugin.discovery import (
    check_requirements,
    check_tier,
    distribution_of_module,
    file_record,
    find_entry_point,
    installed,
    not_found,
)
from tenonry.plugin.kinds import (
    EVERY_INSTALLED,
    HOOK_MODULES,
    IN_PROCESS,
    KINDS,
    REQUEST_CHECKS,
    SETTINGS,
    Kind,
)
from tenonry.plugin.plan import PluginPlan, import_target, load_class
from tenonry.point import Point

if TYPE_CHECKING:
    from tenonry.interfaces.coordination import Coordination


def _entry_points_of(kind: Kind) -> Callable[[str], PluginRecord | None]:
    @hookspecs.hookimpl(trylast=True)
    def answer(name: str) -> PluginRecord | None:
        return find_entry_point(kind, name)

    return answer


OWN_ANSWERS = SimpleNamespace(**{kind.hook: _entry_points_of(kind) for kind in KINDS.values()})


class PluginManager:
    """Hook modules and the resolver. `discover=False` registers no installed hook module (tests, embedding)."""

    def __init__(self, policy: PluginPolicy | None = None, *, discover: bool = True) -> None:
        self._pluggy = pluggy.PluginManager(hookspecs.PROJECT)
        self._pluggy.add_hookspecs(hookspecs)
        self.hook: Any = self._pluggy.hook
        self.hook_modules: list[PluginRecord] = []
        self._pluggy.register(OWN_ANSWERS, "tenonry")
        if discover:
            self._load_hook_modules(policy or PluginPolicy())

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook. Errors of the kernel receive the hook module's name; any other becomes a PluginFault."""
        try:
            return getattr(self.hook, hook)(**arguments)
        except BaseException as error:
            if is_interrupt(error):
                raise
            frames = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
            called = next(one["hook_impl"] for one in frames if "hook_impl" in one)
            name = called.plugin_name
            origin = distribution_of_module(getattr(called.plugin, "__name__", "?"))
            if not isinstance(error, TenonryError):
                raise PluginFault(name, *origin, hook, error) from error
            error.args = (f"{error} ({hook} of {' '.join((f'{name},', *origin)).rstrip(', ')})",)
            raise

    def register(self, module: object, name: str | None = None) -> None:
        """Add a hook module. Raises PluginError for a misspelt hook or wrong arguments, naming the module."""
        try:
            self._pluggy.register(module, name=name)
            self._pluggy.check_pending()
            # Of several `trylast` implementations, the last registered one is called last.
            self._pluggy.unregister(OWN_ANSWERS)
            self._pluggy.register(OWN_ANSWERS, "tenonry")
        except (ValueError, pluggy.PluginValidationError) as error:
            if self._pluggy.is_registered(module):
                self._pluggy.unregister(module)
            label = name or getattr(module, "__name__", repr(module))
            raise PluginError(f"hook module {label}: {' '.join(str(error).split())}") from error

    def _load_hook_modules(self, policy: PluginPolicy) -> None:
        names = {entry.name: entry for entry in installed(HOOK_MODULES)}
        allowed = {*(names if policy.allow is None else policy.allow)}
        if unknown := allowed.union(policy.disable) - names.keys():
            raise ConfigError(
                f"plugins.allow/disable name {sorted(unknown)}, which are not installed; installed: {sorted(names)}"
            )
        for name in sorted(allowed.difference(policy.disable)):
            try:
                module, entry = resolve_point(HOOK_MODULES, name)
                if not getattr(module, "is_idle", bool)():
                    self.register(module, name=name)
                    self.hook_modules.append(entry)
            except PluginError as error:
                origin = f"{names[name].distribution} {names[name].version}"
                error.args = (
                    f"{error}; uninstall {origin}, or disable it: --disable-plugin {name}",
                )
                raise

    def resolve(self, kind: str, choice: PluginChoice, config: EngineConfig) -> PluginRecord:
        """Find and check the plugin of a kernel kind: requirements, class, options, configuration."""
        record = self._find(KINDS[kind], choice, config)
        _check(record, config)
        return record

    def _find(self, kind: Kind, choice: PluginChoice, config: EngineConfig) -> PluginRecord:
        """Resolve a plain name with its hook."""
        if ":" in choice.name:
            return qualified_record(kind.kind, choice)
        record = self.call(kind.hook, name=choice.name, config=config)
        if not isinstance(record, PluginRecord | None):
            record = self._answered(kind, choice, str(record))
        return _entry_record(kind, choice, record, config.allow_experimental_plugins)

    def _answered(self, kind: Kind, choice: PluginChoice, target: str) -> PluginRecord:
        """Return the record of the "module:Class" returned by a hook module, under its installed name if it has one."""
        names = [entry.name for entry in installed(kind) if entry.target == target]
        try:
            record = _target_record(kind.kind, choice, target)
            record = msgspec.structs.replace(record, name=names[0] if names else target)
            settings_of(record)  # a target that cannot be imported is found here
        except PluginError as error:
            others = getattr(self.hook, kind.hook).get_hookimpls()[1:]  # after the kernel's own
            modules = " or ".join(each.plugin_name for each in others)
            text = f"{error}; {kind.hook} of {modules} answered {target!r} for '{choice.name}'"
            error.args = (f'{text}; give None or "module:Class"',)
            raise
        return record

    def choose(self, config: EngineConfig, *, launcher: bool = True) -> list[PluginRecord]:
        """Find the configured plugins, and those active without being named; raises on the first failure."""
        entries = []
        consent = config.allow_experimental_plugins
        for name in KINDS if launcher else IN_PROCESS:
            kind = KINDS[name]
            if kind.needed_by and all(
                getattr(config, each) == EngineConfig.model_fields[each].default
                for each in kind.needed_by
            ):
                continue
            is_list = name in {"stat_logger", "call_set"}
            choices: Any = getattr(config, f"{name}s") if is_list else [getattr(config, name)]
            if choices is None:  # others are resolved by name
                choices = [each for each in installed(kind) if each.name in kind.provider]
            entries += [self._find(kind, choice, config) for choice in choices if choice]
        for point in EVERY_INSTALLED:
            names = dict.fromkeys(each.name for each in installed(point))
            entries += [find_plugin(point, each, allow_experimental=consent) for each in names]
        return entries

    def plan(self, config: EngineConfig, *, launcher: bool = True) -> PluginPlan:
        """Choose the plugins, and check them and their settings; raises on the first failure."""
        entries = self.choose(config, launcher=launcher)
        for record in entries:
            _check(record, config)
        owned = [*sections(entries, lambda: config)]
        parts = merged(owned)
        for _, model in owned:
            config.section(model)
        for name in config.model_extra or ():
            if name not in parts:
                raise _stray(name, EngineConfig.model_fields | parts)
        secrets = tuple(name for name, field in parts.items() if not field.repr)
        plan = PluginPlan(tuple(entries), tuple(self.hook_modules), secrets)
        check_capabilities(plan.get("worker"), parts, config)
        self.call("tenonry_configured", config=config)
        return plan

    def resolve_model(self, config: EngineConfig) -> ModelInfo:
        """Resolve the model's facts by the hooks. Raises ModelError for an unknown model."""
        info: ModelInfo | None = self.call("tenonry_resolve_model", config=config)
        if info is None:
            raise ModelError(
                f"model '{config.model}' was found by no plugin; a folder, a hub id or a registered name needs: pip "
                "install tenonry-hf-hub"
            )
        return info


def _check(record: PluginRecord, config: EngineConfig) -> None:
    plugin = load_class(record)
    if record.kind != REQUEST_CHECKS.kind:
        with blamed(record, "check"):
            plugin.check(config, load_options(record, plugin))


def settings_of(record: PluginRecord) -> type[PluginSettings]:
    """Return the settings model of a plugin. Imports the plugin unless an entry point names the model."""
    entry = find_entry_point(SETTINGS, f"{record.kind}.{record.name}")
    if entry is None or entry.distribution != record.distribution:
        return getattr(load_class(record), "Settings", PluginSettings)
    model: type[PluginSettings] = import_target(entry)
    if problem := wrong_class(model, PluginSettings, SETTINGS):
        raise PluginIncompatible(f"{entry.label()} {problem}")
    return model


def sections(
    records: Iterable[PluginRecord], config: Callable[[], EngineConfig]
) -> Iterator[tuple[PluginRecord, type[PluginSettings]]]:
    """Yield these plugins and those that they use, each with its settings model.

    `config`: called once a model whose settings choose further plugins was reached.
    """
    found = [*records]
    for record in found:  # it grows
        model = settings_of(record)
        yield record, model
        if model.uses is not PluginSettings.uses:
            known = config()
            used = known.section(model).uses(record.options)
            consent = known.allow_experimental_plugins
            found += [find_plugin(*each, allow_experimental=consent) for each in used]


def part_settings(records: Iterable[PluginRecord], config: EngineConfig) -> dict[str, FieldInfo]:
    """As `merged`, for these plugins and those that they use."""
    return merged(sections(records, lambda: config))


def merged(parts: Iterable[tuple[PluginRecord, type[PluginSettings]]]) -> dict[str, FieldInfo]:
    """Merge the settings of plugins by name; several may declare the same one alike.

    Raises ConfigError naming both owners of a setting declared differently.
    """
    owners: Any = dict.fromkeys(EngineConfig.model_fields, ("tenonry itself", EngineConfig))
    found: dict[str, FieldInfo] = {}
    for record, settings in parts:
        owner = record.label(), settings
        for name, field in settings.model_fields.items():
            # Most settings have one owner; what two declare is slow to compare.
            if owners.setdefault(name, owner) != owner and repr(found.get(name)) != repr(field):
                one, two = (f"{label} at {where(model)}" for label, model in (owners[name], owner))
                raise ConfigError(
                    f"{one} and {two} both claim the setting '{name}'; rename it, or choose another plugin instead "
                    "of one of them"
                )
            found[name] = field
    return found


def _stray(name: str, known: Iterable[str]) -> ConfigError:
    """Error for a setting without a chosen owner."""
    if owners := [*owners_of(lambda each, _: each == name)]:
        return ConfigError(
            f"setting '{name}' belongs to {' and '.join(map(PluginRecord.label, owners))}, not in use here; leave it "
            "out, or choose that plugin"
        )
    package = SETTINGS.provider.get(name)
    hint = f"; it comes with: pip install {package}" if package else nearest(name, known)
    return ConfigError(f"unknown setting '{name}'{hint}")


def owners_of(
    is_meant: Callable[[str, FieldInfo], bool], points: Any = KINDS
) -> Iterator[PluginRecord]:
    """Installed plugins of some points, by default the kernel's kinds, that have such a setting."""
    for point in points.values():
        for record in installed(point):
            with contextlib.suppress(PluginError):  # reported where it is chosen
                if any(itertools.starmap(is_meant, settings_of(record).model_fields.items())):
                    yield record


def check_capabilities(
    worker: PluginRecord, parts: dict[str, FieldInfo], config: EngineConfig
) -> None:
    """Raise ConfigError for a setting, of the kernel or in `parts`, that the worker would ignore."""
    for name, field in (EngineConfig.model_fields | parts).items():
        value = getattr(config, name, None)
        needed = fact(field, "capability")
        if (
            needed
            and value
            and value != field.default
            and needed not in load_class(worker).capabilities
        ):
            raise ConfigError(
                f"{name}={getattr(value, 'name', value)}: {worker.label()} lacks the capability '{needed}'; "
                "leave it out, or choose another with --worker"
            )


def qualified_record(kind: str, choice: PluginChoice) -> PluginRecord:
    """Return the record of `module:Class` or `path.py:Class`."""
    left, _, right = choice.name.rpartition(":")
    if left.endswith(".py"):
        return file_record(kind, choice, left, right)
    return _target_record(kind, choice, choice.name)


def _target_record(kind: str, choice: PluginChoice, target: str) -> PluginRecord:
    """Return the record of an importable target; its distribution's requirements are checked before any import."""
    distribution, version = distribution_of_module(target.partition(":")[0])
    check_requirements(distribution)
    return PluginRecord(kind, choice.name, target, distribution, version, options=choice.options)


def _entry_record(
    point: Point, choice: PluginChoice, found: PluginRecord | None, allow_experimental: bool
) -> PluginRecord:
    """Return an entry point's record, with the options of the choice. Raises PluginNotFound, and as `check_tier`."""
    if found is None:
        raise not_found(point, choice.name)
    check_requirements(found.distribution)
    check_tier(point, found, allow_experimental=allow_experimental)
    return msgspec.structs.replace(found, options=choice.options)


def find_plugin(
    point: Point, choice: PluginChoice | str, *, allow_experimental: bool = False
) -> PluginRecord:
    """As `resolve_point`, without importing the plugin."""
    if isinstance(choice, str):
        choice = PluginChoice.model_construct(name=choice)  # any text may be passed
    if ":" in choice.name:
        return qualified_record(point.kind, choice)
    found = find_entry_point(point, choice.name)
    return _entry_record(point, choice, found, allow_experimental)


def resolve_point(
    point: Point, choice: PluginChoice | str, *, allow_experimental: bool = False
) -> tuple[Any, PluginRecord]:
    """Resolve a plugin of a point opened by its owner: same names, checks and errors as for the kernel's kinds.

    Called in the owner's process. `allow_experimental`: consent to third-party plugins of an alpha point, as
    `allow_experimental_plugins` of the owner's configuration. Returns the imported target, checked as declared by the
    point, and its record. Raises PluginError.
    """
    record = find_plugin(point, choice, allow_experimental=allow_experimental)
    found = import_target(record)
    check_plugin(found, record, point)
    load_options(record, found)
    return found, record


def build_plugin(record: PluginRecord, context: PluginContext) -> Any:
    """Construct the record's class; its validated options are added to the context. Raises PluginError."""
    plugin = load_class(record)
    context.options = load_options(record, plugin)
    with blamed(record, "its constructor"):
        return plugin(context)


def build_coordination(config: EngineConfig, plan: PluginPlan) -> tuple[Coordination, PluginRecord]:
    """Return the coordination and its record, resolved here if the plan is that of a single engine."""
    record = plan.find("coordination") or PluginManager(config.plugins).resolve(
        "coordination", config.coordination, config
    )
    return build_plugin(record, PluginContext(config)), record


@contextlib.contextmanager
def blamed(record: PluginRecord, call: str) -> Iterator[None]:
    """Convert an exception of this block to a PluginFault naming the plugin; errors of the kernel and Ctrl-C pass."""
    try:
        yield
    except TenonryError:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise record.fault(call, error) from error
