"""Base of every plugin class. Any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from tenonry.config import EngineConfig, PluginChoice, Settings
from tenonry.point import Point


class PluginOptions(Settings):
    """Base for a plugin's `Options`: unknown keys are rejected, and values do not change after startup."""


class PluginSettings(Settings):
    """Base for a plugin's `Settings`: named settings declared with `tenonry.config.setting`.

    They are set like the kernel's: by flag, variable, YAML key or keyword argument. `config.section(Model)` returns an
    instance, in any process. The entry point KIND.NAME in the group `tenonry.settings` may name the model in a module
    that imports faster than the plugin; help and flags then do not import the plugin.
    """

    def uses(self, options: Mapping[str, Any]) -> Iterable[tuple[Point, PluginChoice]]:
        """Return plugins built by this one, whose settings are accepted as well. `options`: before validation."""
        return ()


class NoOptions(PluginOptions):
    """Options of a plugin that has none."""


NO_OPTIONS = NoOptions()


@dataclass(slots=True)
class PluginContext:
    """Context of every plugin: the engine's configuration, and its own options."""

    config: EngineConfig
    _: KW_ONLY
    options: BaseModel = NO_OPTIONS


ContextT = TypeVar("ContextT", bound=PluginContext)


class Plugin(Generic[ContextT]):
    """Base of all interfaces. The front end imports a plugin class to check it, so its module must import quickly.

    `interface_version`: the version of the interface the class was written for. `Options`: a pydantic model; the
    kernel validates the user's options with it before anything starts and passes the instance in the context, the only
    input of a plugin. `Settings`: a PluginSettings, validated at start like the kernel's settings.
    """

    interface_version: ClassVar[int] = 1
    Options: ClassVar[type[BaseModel]] = NoOptions
    Settings: ClassVar[type[PluginSettings]] = PluginSettings

    def __init__(self, context: ContextT) -> None:
        self.context = context

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Reject a configuration that this plugin does not support; `options` are already validated.

        Called once in the front end, before any process starts. Raise ConfigError, or PluginError for a missing
        required plugin. Must be quick, and start nothing.
        """
