"""Options and settings of the worker `auto`. Read in the front end to check a command line, and in the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from tenonry.config import PluginChoice, read, read_list
from tenonry.interfaces.plugin import PluginOptions, PluginSettings
from tenonry.plugin.kinds import KINDS
from tenonry.point import Point


class AutoOptions(PluginOptions):
    """`--worker-option key=value`. All keys but `candidates` are options of the worker that is chosen."""

    model_config = ConfigDict(extra="allow")

    candidates: Annotated[tuple[str, ...], BeforeValidator(read_list)] = Field(
        ("torch", "transformers", "pooling"),
        description="Workers, in order of preference.",
        min_length=1,
    )


class AutoSettings(PluginSettings):
    """Settings of the candidates."""

    def uses(self, options: Mapping[str, Any]) -> list[tuple[Point, PluginChoice]]:
        """Return the installed candidates."""
        from tenonry.plugin.discovery import find_entry_point

        chosen, point = read(AutoOptions, options, AutoOptions.model_fields), KINDS["worker"]
        return [
            (point, PluginChoice(name=name))
            for name in chosen.candidates
            if ":" in name or find_entry_point(point, name)
        ]
