"""Settings from keyword arguments and `TENONRY_<FIELD>` variables. Front end."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, explain, fact, plain_type
from tenonry.errors import ConfigError

logger = logging.getLogger(__name__)
ENV_PREFIX = "TENONRY_"
# Set by Kubernetes in every container, for each Service whose name begins with tenonry.
KUBERNETES = re.compile(
    r"\w+(_PORT=(tcp|udp|sctp)://.*|_SERVICE_(HOST|PORT\w*)=.*|_PORT_\d+_(TCP|UDP|SCTP)\w*=.*)"
)


def make_config(values: Mapping[str, Any], *, use_environment: bool = True) -> EngineConfig:
    """Build an EngineConfig from keyword arguments over `TENONRY_<FIELD>`.

    A model of None is one that is not given. Raises ConfigError that names each offending path, its value and the
    nearest known key.
    """
    fields = EngineConfig.model_fields
    given = environment_values(fields) if use_environment else {}
    given |= {name: value for name, value in values.items() if value is not None or name != "model"}
    try:
        return EngineConfig.model_validate(given)
    except ValidationError as error:
        raise ConfigError(explain(error, list(fields))) from None


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
    names = {variable_of(name, field): name for name, field in fields.items()}
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


def variable_of(name: str, field: FieldInfo) -> str:
    """The variable that sets a field."""
    return ENV_PREFIX + (fact(field, "env") or name).upper()


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
