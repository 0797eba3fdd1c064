"""Where settings come from: flags, then `TENONRY_<FIELD>` variables, then a YAML file, then defaults. Front end.

`Sources` is built once per command or call, and asked by each model of settings for its own keys.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, explain, plain_type
from tenonry.errors import ConfigError

logger = logging.getLogger(__name__)
ENV_PREFIX = "TENONRY_"
# Set by Kubernetes in every container, for each Service whose name begins with tenonry.
KUBERNETES = re.compile(
    r"\w+(_PORT=(tcp|udp|sctp)://.*|_SERVICE_(HOST|PORT\w*)=.*|_PORT_\d+_(TCP|UDP|SCTP)\w*=.*)"
)
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
        """What is given of a model's keys."""
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


def make_config(values: dict[str, Any], *, use_environment: bool = True) -> EngineConfig:
    """Build an EngineConfig from keyword arguments over `TENONRY_<FIELD>` over `values["config"]` (YAML).

    Raises ConfigError that names each offending path, its value and the nearest known key.
    """
    given = dict(values)
    file = given.pop("config", None)
    if given.get("model", "") is None:
        del given["model"]
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
    """Fields that `TENONRY_<FIELD>` sets; an empty variable counts as unset, one that Kubernetes set is ignored.

    Raises ConfigError, also for a variable whose name is nearly that of a field: a slip of the finger in the name of
    a key would otherwise leave a server open.
    """
    found: dict[str, Any] = {}
    names = {ENV_PREFIX + name.upper(): name for name in fields}
    ours = {name: text for name, text in os.environ.items() if name.startswith(ENV_PREFIX)}
    services = [name for name, text in ours.items() if KUBERNETES.fullmatch(f"{name}={text}")]
    if services:
        logger.info("ignored variables that Kubernetes sets for a Service: %s", ", ".join(services))
    for variable, text in ours.items():
        if variable in services:
            continue
        near = difflib.get_close_matches(variable, names, n=1, cutoff=0.85)
        if near and near[0] != variable:
            raise ConfigError(f"{variable} is no setting; did you mean {near[0]}?")
        if near and text:
            name = names[variable]
            kind = plain_type(fields[name].annotation)
            found[name] = _read_variable(variable, text, kind)
    return found


def _read_variable(variable: str, text: str, kind: Any) -> Any:
    """Texts are taken as they are; the rest is YAML, where true, 3 and [a, b] mean what they look like."""
    if kind is str:
        return text
    is_bracketed = text.startswith("[") and text.endswith("]")
    if kind == tuple[str, ...] and not is_bracketed:
        parts = [part.strip() for part in text.split(",")]
        filled = [part for part in parts if part]
        # A blank list is left to the model to refuse.
        return filled or [""]
    return read_yaml(text, f"{variable}={text!r}")
