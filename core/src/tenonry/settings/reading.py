"""Reads the YAML file of `--config` and the `TENONRY_<FIELD>` variables as plain values. Front end."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from tenonry.config import plain_type
from tenonry.errors import ConfigError

ENV_PREFIX = "TENONRY_"
# Set by Kubernetes in every container, for each Service whose name begins with tenonry.
KUBERNETES = re.compile(
    r"\w+(_PORT=(tcp|udp|sctp)://.*|_SERVICE_(HOST|PORT\w*)=.*|_PORT_\d+_(TCP|UDP|SCTP)\w*=.*)"
)

logger = logging.getLogger(__name__)


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
