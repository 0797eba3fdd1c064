"""Settings of a command: flags, then `TENONRY_<FIELD>` variables, then a YAML file, then defaults. Front end.

`Sources` is built once per command and splits the values among its models of settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tenonry.config import explain
from tenonry.config.sources import environment_values, read_yaml
from tenonry.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class Sources:
    """The settings of one command, by name, before any model has checked them.

    `flags` win over variables, those over `file`. `models` share the sources; a key that none of them knows goes to
    the first one, which refuses it. `translate` renames the keys of the file.
    """

    def __init__(
        self,
        flags: Mapping[str, Any],
        *models: type[BaseModel],
        file: str | os.PathLike[str] | None = None,
        use_environment: bool = True,
        translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ) -> None:
        """Read the file and the variables. Raises ConfigError."""
        self._first = models[0]
        self._fields: dict[str, FieldInfo] = {}
        for model in models:
            self._fields |= model.model_fields
        self._values: dict[str, Any] = {}
        if file:
            self._values |= translate(load_yaml(file))
        if use_environment:
            self._values |= environment_values(self._fields)
        self._values |= flags

    def values(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return the given values of a model's keys."""
        names = set(model.model_fields)
        if model is self._first:
            names |= self._values.keys() - self._fields
        return {name: value for name, value in self._values.items() if name in names}

    def make(self, model: type[Model], values: Mapping[str, Any] | None = None) -> Model:
        """The model, of what is given or of `values` instead. Raises ConfigError naming each bad setting."""
        if values is None:
            values = self.values(model)
        try:
            return model.model_validate(dict(values))
        except ValidationError as error:
            known = list(self._fields)
            secrets = [name for name in known if not self._fields[name].repr]
            raise ConfigError(explain(error, known, secrets)) from None


def load_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a YAML mapping of field names (dashes or underscores). Raises ConfigError."""
    try:
        data = read_yaml(Path(path).read_bytes(), f"config file {path}")
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"config file {path} must hold a mapping of settings, not a {type(data).__name__}"
        )
    return {str(key).replace("-", "_"): value for key, value in data.items()}
