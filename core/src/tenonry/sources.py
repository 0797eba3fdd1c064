"""Where settings come from: flags, then `TENONRY_<FIELD>` variables, then a YAML file, then defaults. Front end.

`Sources` is built once per command or call, and asked by each model of settings for its own keys.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, plain_type
from tenonry.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
ENV_PREFIX = "TENONRY_"


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
        self._models = models
        self._fields = {name: field for one in models for name, field in one.model_fields.items()}
        variables = environment_values(self._fields) if use_environment else {}
        self._values = {**(translate(load_yaml(file)) if file else {}), **variables, **flags}

    def values(self, model: type[BaseModel]) -> dict[str, Any]:
        """What is given of a model's keys."""
        names = set(model.model_fields)
        if model is self._models[0]:
            names |= set(self._values) - set(self._fields)
        return {name: value for name, value in self._values.items() if name in names}

    def make(self, model: type[Model], values: Mapping[str, Any] | None = None) -> Model:
        """The model, of what is given or of `values` instead. Raises ConfigError naming each bad setting."""
        hidden = {name for name, field in model.model_fields.items() if not field.repr}
        try:
            return model.model_validate(self.values(model) if values is None else dict(values))
        except ValidationError as error:
            raise ConfigError(explain(error, list(self._fields), hidden)) from None


def make_config(values: dict[str, Any], *, use_environment: bool = True) -> EngineConfig:
    """Build an EngineConfig from keyword arguments over `TENONRY_<FIELD>` over `values["config"]` (YAML).

    Raises ConfigError that names each offending path, its value and the nearest known key.
    """
    given = {name: value for name, value in values.items() if name != "model" or value is not None}
    file = given.pop("config", None)
    sources = Sources(given, EngineConfig, file=file, use_environment=use_environment)
    return sources.make(EngineConfig)


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


def read_yaml(text: str | bytes, source: str) -> Any:
    """One YAML value. Raises ConfigError that names the source."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from None


def environment_values(fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Fields that `TENONRY_<FIELD>` sets; an empty variable counts as unset.

    Raises ConfigError, also for a variable whose name is nearly that of a field: a slip of the finger in the name of
    a key would otherwise leave a server open.
    """
    found: dict[str, Any] = {}
    names = {ENV_PREFIX + name.upper(): name for name in fields}
    for variable in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
        near = difflib.get_close_matches(variable, names, n=1, cutoff=0.85)
        if near and near[0] != variable:
            raise ConfigError(f"{variable} is no setting; did you mean {near[0]}?")
        if near and (text := os.environ[variable]):
            name = names[variable]
            found[name] = _read_variable(variable, text, plain_type(fields[name].annotation))
    return found


def _read_variable(variable: str, text: str, kind: Any) -> Any:
    """Texts are taken as they are; the rest is YAML, where true, 3 and [a, b] mean what they look like."""
    if kind is str:
        return text
    is_bracketed = text.startswith("[") and text.endswith("]")
    if kind == tuple[str, ...] and not is_bracketed:
        parts = [part.strip() for part in text.split(",")]
        return [part for part in parts if part] or [""]  # blank: for the model to refuse
    return read_yaml(text, f"{variable}={text!r}")


def explain(error: ValidationError, known: Sequence[str], hidden: Container[str] = ()) -> str:
    """A pydantic error as one line: path, value and bound of each problem; for a wrong key the nearest of `known`.

    Values of `hidden` fields are left out.
    """
    lines = []
    for problem in error.errors(include_url=False):
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, known if len(problem["loc"]) == 1 else (), n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            lines.append(f"unknown setting '{path}'{hint}")
        elif problem["type"] == "missing":
            lines.append(f"setting '{path}' is missing")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            is_hidden = problem["loc"][:1] and problem["loc"][0] in hidden
            value = "" if is_hidden else f"={problem['input']!r}"
            lines.append(f"{path}{value}: {text}" if path else text)
    return "; ".join(lines)
