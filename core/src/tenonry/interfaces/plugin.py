"""What every plugin class has in common. Any process."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class PluginOptions(BaseModel):
    """Base for a plugin's `Options`: unknown keys are refused, and values do not change after start."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoOptions(PluginOptions):
    """Options of a plugin that has none."""


NO_OPTIONS = NoOptions()


class Plugin:
    """Base of all interfaces. A plugin class is looked at in the front end, so its module must import quickly.

    `interface_version`: the version of the interface the class was written for. `Options`: a pydantic model; the
    kernel validates the user's options with it before anything starts and passes the instance in the context.
    """

    interface_version: ClassVar[int] = 1
    Options: ClassVar[type[BaseModel]] = NoOptions

    @classmethod
    def parse_options(cls, values: dict[str, Any]) -> BaseModel:
        """Validate `values`; pydantic's ValidationError passes through."""
        return cls.Options.model_validate(values)
