"""Settings of a command: flags, then `TENONRY_<FIELD>` variables, then a YAML file, then defaults. Front end.

`Sources` is built once per command and splits the values among its models of settings and the chosen plugins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tenonry.config import read
from tenonry.config.sources import environment_values, read_yaml
from tenonry.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


class Sources:
    """The settings of one command, by name, before any model has checked them.

    `flags` win over variables, those over `file`. `models` share the sources; `parts`: settings of the chosen plugins
    of each model. Keys that nobody knows go to the first one. `is_complete`: all settings are known, and near names of
    variables are refused. `translate` renames the keys of the file.
    """

    def __init__(
        self,
        flags: Mapping[str, Any],
        *models: type[BaseModel],
        file: str | os.PathLike[str] | None = None,
        use_environment: bool = True,
        translate: Callable[[dict[str, Any]], dict[str, Any]] = dict,
        parts: Sequence[Mapping[str, FieldInfo]] = (),
        is_complete: bool = True,
    ) -> None:
        """Read the file and the variables. Raises ConfigError."""
        self._first = models[0]
        self._fields: dict[str, FieldInfo] = {}
        self._names: dict[type[BaseModel], set[str]] = {}
        for model, part in zip(models, (*parts, *[{}] * len(models)), strict=False):
            self._fields |= {**model.model_fields, **part}
            self._names[model] = {*model.model_fields, *part}
        self._values: dict[str, Any] = {}
        if file:
            self._values |= translate(load_yaml(file))
        if use_environment:
            self._values |= environment_values(self._fields, is_complete=is_complete)
        self._values |= flags

    def values(self, model: type[BaseModel]) -> dict[str, Any]:
        """Return the given values of a model's keys, and of its plugins'."""
        names = set(self._names[model])
        if model is self._first:
            names |= self._values.keys() - self._fields
        return {name: value for name, value in self._values.items() if name in names}

    def make(self, model: type[Model], values: Mapping[str, Any] | None = None) -> Model:
        """The model, of what is given or of `values` instead. Raises ConfigError naming each bad setting."""
        return read(model, dict(self.values(model) if values is None else values), self._fields)


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
