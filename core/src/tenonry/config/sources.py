"""Settings from keyword arguments and `TENONRY_<FIELD>` variables. Front end."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, fact, plain_type, read, read_list
from tenonry.errors import ConfigError

logger = logging.getLogger(__name__)
ENV_PREFIX = "TENONRY_"
# Set by Kubernetes in every container, for each Service whose name begins with tenonry.
KUBERNETES = re.compile(
    r"\w+(_PORT=(tcp|udp|sctp)://.*|_SERVICE_(HOST|PORT\w*)=.*|_PORT_\d+_(TCP|UDP|SCTP)\w*=.*)"
)


def make_config(
    values: Mapping[str, Any], parts: dict[str, FieldInfo] | None = None
) -> EngineConfig:
    """Build an EngineConfig from keyword arguments over `TENONRY_<FIELD>`.

    A model of None counts as unset. `parts`: settings of chosen plugins; None before they are known. Raises ConfigError
    that names each offending path and its value.
    """
    fields = EngineConfig.model_fields | (parts or {})
    given = environment_values(fields, is_complete=parts is not None)
    given |= {name: value for name, value in values.items() if value is not None or name != "model"}
    return read(EngineConfig, given, fields)


def read_yaml(text: str | bytes, source: str) -> Any:
    """Parse one YAML value. Raises ConfigError that names the source."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {error}") from None


def environment_values(
    fields: Mapping[str, FieldInfo], *, is_complete: bool = True
) -> dict[str, Any]:
    """Fields set by `TENONRY_<FIELD>`; empty variables and those of Kubernetes are ignored.

    Raises ConfigError; if `fields` is complete, also for a variable whose name nearly matches a field: a typo in the
    name of an API key would otherwise leave a server open.
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
        if is_complete and near and near[0] != variable:
            raise ConfigError(f"{variable} is not a setting; did you mean {near[0]}?")
        if text and (name := names.get(variable)):
            kind = plain_type(fields[name].annotation)
            if kind == tuple[str, ...] and text[0] + text[-1] != "[]":
                found[name] = read_list(text)
            else:  # other types are YAML: true and 3 mean what they look like
                found[name] = text if kind is str else read_yaml(text, f"{variable}={text!r}")
    return found


def variable_of(name: str, field: FieldInfo) -> str:
    """Variable that sets a field."""
    return ENV_PREFIX + (fact(field, "env") or name).upper()
