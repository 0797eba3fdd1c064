"""The options of `chain`, and those of its connectors among them. Any process."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from tenonry.config import PluginChoice, read_list
from tenonry.interfaces.plugin import PluginOptions


class ChainOptions(PluginOptions):
    """`--kv-connector-option key=value`; an option of one connector is `NAME.key`."""

    model_config = ConfigDict(extra="allow")

    connectors: tuple[str, ...] = Field(
        min_length=1, description="Names of the connectors, in order of queries: host,disk."
    )

    @field_validator("connectors", mode="before")
    @classmethod
    def _read_names(cls, value: Any) -> Any:
        return read_list(value)

    @field_validator("connectors")
    @classmethod
    def _check_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)} names a connector twice")
        return names

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        for key in self.model_extra or {}:
            if self._owner(key) is None:
                raise ValueError(
                    f"'{key}' is no option; write NAME.key, where NAME is one of {', '.join(self.connectors)}"
                )
        return self

    def _owner(self, key: str) -> str | None:
        """The connector whose option this is; the longest name that fits."""
        owners = [name for name in self.connectors if key.startswith(f"{name}.")]
        return max(owners, key=len, default=None)

    def choices(self) -> list[PluginChoice]:
        """Each connector with its own options."""
        found = []
        for name in self.connectors:
            options = {
                key.removeprefix(f"{name}."): value
                for key, value in (self.model_extra or {}).items()
                if self._owner(key) == name
            }
            found.append(PluginChoice(name=name, options=options))
        return found
