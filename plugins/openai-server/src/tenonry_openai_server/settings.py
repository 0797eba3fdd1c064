"""The server's own settings, beside `EngineConfig`: one frozen model for flags, environment and YAML. Light; front end.

The YAML file of `--config` holds the engine's and the server's settings side by side; each model takes its own keys.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
from typing import Any, Literal, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tenonry.config import (
    ENV_PREFIX,
    EngineConfig,
    PluginChoice,
    environment_values,
    human_int,
    load_yaml,
)
from tenonry.errors import ConfigError
from tenonry.plugin.discovery import installed
from tenonry_commands import arguments
from tenonry_commands.arguments import config_from_arguments
from tenonry_openai_server.familiar_flags import add_familiar_flags, translate

ALIASES = {"api_server_count": ("-asc",)}
DEFAULT_STAT_LOGGERS = ("console", "prometheus")
TRACER = "opentelemetry"  # the stat logger that an endpoint for traces asks for


class ServerConfig(BaseModel):
    """Where and how the server answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(
        "127.0.0.1", min_length=1, max_length=255, description="Address to bind; 0.0.0.0 for all."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to bind; 0 takes a free one.")
    uds: str | None = Field(
        None, min_length=1, description="Unix socket to bind instead of host and port."
    )
    api_key: tuple[str, ...] = Field(
        (), description="Key that clients must send; repeat it for several."
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Host names to answer to besides local ones."
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="Origins whose web pages may call the server, or *."
    )
    root_path: str = Field(
        "", pattern=r"^(/.*[^/])?$", description="Path prefix that a proxy in front removes."
    )
    max_body_bytes: int = Field(16 << 20, ge=1024, le=1 << 30, description="Largest request body.")
    max_header_bytes: int = Field(
        64 << 10, ge=1024, le=1 << 20, description="Largest request line and headers."
    )
    receive_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Seconds that headers, or the next part of a body, may take.",
    )
    keep_alive_timeout: int = Field(
        65, ge=1, le=3600, description="Seconds that an idle connection is kept."
    )
    backlog: int = Field(
        2048, ge=1, le=65535, description="Connections that may wait to be accepted."
    )
    route: tuple[str, ...] = Field(
        (), description="Route plugin to mount under /plugins/NAME; repeat for several."
    )
    api_server_count: int = Field(
        1, ge=1, le=256, description="API server processes that share the engines."
    )
    api_server_death: Literal["restart", "stop"] = Field(
        "restart",
        description="What follows when one of several API servers dies: it is restarted, or all stop.",
    )
    headless: bool = Field(
        False, description="Run only this node's engines, for a server on another node."
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        min_length=1,
        description=f"Collector that gets a span per request, from the stat logger {TRACER}.",
    )
    disable_access_log: bool = Field(False, description="Do not log each HTTP request.")
    ssl_certfile: str | None = Field(None, description="Certificate file; turns on HTTPS.")
    ssl_keyfile: str | None = Field(None, description="Key file of the certificate.")
    ssl_keyfile_password: str | None = Field(None, description="Password of the key file.")
    ssl_ca_certs: str | None = Field(
        None, description="Authorities whose client certificates are required."
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read_number(cls, value: Any, info: ValidationInfo) -> Any:
        """What a variable or a YAML file holds as text means what it means as a flag."""
        is_number = cls.model_fields[info.field_name or ""].annotation is int
        return human_int(value) if is_number and isinstance(value, str) else value

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _read_origins(cls, values: Any) -> Any:
        """An entry may be a JSON list, as vLLM wants it: no origin looks like one."""
        is_list = isinstance(values, list | tuple)
        return (
            tuple(origin for value in values for origin in _json_list(value)) if is_list else values
        )

    @field_validator("api_key")
    @classmethod
    def _check_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        if any(not key.strip() for key in keys):
            raise ValueError("an API key is empty")
        return keys

    @model_validator(mode="after")
    def _check_tls(self) -> ServerConfig:
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs):
            raise ValueError("ssl_keyfile and ssl_ca_certs need ssl_certfile")
        return self

    @property
    def url(self) -> str:
        """Where clients find the server; a wildcard address is shown as this machine's own."""
        if self.uds:
            return f"unix:{self.uds}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  shown, not bound
        scheme = "https" if self.ssl_certfile else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.root_path}"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag per field of ServerConfig."""
    group = parser.add_argument_group("server")
    for name, field in ServerConfig.model_fields.items():
        many = get_origin(field.annotation) is tuple
        default = "none" if field.default in (None, (), "") else field.default
        note = f"{field.description} [default: {default}; env: {ENV_PREFIX}{name.upper()}]"
        keywords: dict[str, Any] = {"dest": name, "default": None, "help": note.replace("%", "%%")}
        if field.annotation is bool:
            keywords["action"] = "store_true"
        elif many:
            keywords |= {"action": "append", "metavar": name.upper()}
        elif get_origin(field.annotation) is Literal:
            keywords["choices"] = get_args(field.annotation)
        elif field.annotation in (int, float):
            keywords |= {
                "type": arguments.human_int if field.annotation is int else float,
                "metavar": "N",
            }
        else:
            keywords["metavar"] = name.upper()
        group.add_argument("--" + name.replace("_", "-"), *ALIASES.get(name, ()), **keywords)
    add_familiar_flags(parser)


def configs_from_arguments(args: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """The two configurations that flags, environment and `--config` describe. Raises ConfigError."""
    given = vars(args)
    from_file = translate(load_yaml(given["config"])) if given.get("config") else {}
    own = {name: from_file.pop(name) for name in ServerConfig.model_fields if name in from_file}
    own |= _environment()
    own |= {name: given[name] for name in ServerConfig.model_fields if given.get(name) is not None}
    config, server = _engine_config(given, from_file), make_server_config(own)
    return _traced(config, server.otlp_traces_endpoint), server


def _json_list(value: Any) -> list[Any]:
    if not (isinstance(value, str) and value.startswith("[")):
        return [value]
    try:
        found: list[Any] = json.loads(value)
    except json.JSONDecodeError:
        raise ValueError(
            "is neither an origin, such as https://example.org, nor a JSON list of origins"
        ) from None
    return found


def make_server_config(values: dict[str, Any]) -> ServerConfig:
    """Validate `values`; a single text stands for a list of one. Raises ConfigError that names each bad setting."""
    lists = {
        n for n, field in ServerConfig.model_fields.items() if get_origin(field.annotation) is tuple
    }
    values = {
        n: (v,) if n in lists and isinstance(v, str) else v
        for n, v in values.items()
        if v is not None
    }
    try:
        return ServerConfig.model_validate(values)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            path = ".".join(str(part) for part in problem["loc"])
            secret = path.startswith(("api_key", "ssl_keyfile_password"))
            value = "" if secret or not path else f"={problem['input']!r}"
            text = problem["msg"].removeprefix("Value error, ")
            problems.append(f"{path}{value}: {text}" if path else text)
        raise ConfigError("; ".join(problems)) from None


def _environment() -> dict[str, Any]:
    found: dict[str, Any] = {}
    _refuse_misspelt()
    for name, field in ServerConfig.model_fields.items():
        text = os.environ.get(ENV_PREFIX + name.upper())
        if text:
            many = get_origin(field.annotation) is tuple
            parts = [part.strip() for part in text.split(",") if part.strip()]
            found[name] = (
                (parts or [""]) if many else text
            )  # a blank key is refused: it must not mean 'no keys'
    return found


def _refuse_misspelt() -> None:
    """A variable that is nearly a setting is a slip of the finger, and `API_KYE` would open the server to everybody."""
    own = [ENV_PREFIX + name.upper() for name in ServerConfig.model_fields]
    known = {*own, *(ENV_PREFIX + name.upper() for name in EngineConfig.model_fields)}
    for variable in [
        name for name in os.environ if name.startswith(ENV_PREFIX) and name not in known
    ]:
        if near := difflib.get_close_matches(variable, own, n=1, cutoff=0.85):
            raise ConfigError(f"{variable} is no setting; did you mean {near[0]}?")


def _engine_config(given: dict[str, Any], from_file: dict[str, Any]) -> EngineConfig:
    """What the file says joins the flags where neither a flag nor the environment says it."""
    said = {name for name in EngineConfig.model_fields if given.get(name) is not None} | set(
        environment_values()
    )
    if given.get("model_tag"):
        said.add("model")
    if given.get("allow_plugin") or given.get("disable_plugin"):
        said.add("plugins")
    rest = {name: value for name, value in from_file.items() if name not in said}
    has_default = "stat_loggers" not in said | set(rest)
    if has_default:
        rest["stat_loggers"] = _default_stat_loggers()
    config = config_from_arguments(argparse.Namespace(**{**given, "config": None}), **rest)
    return (
        config.model_copy(update={"stat_loggers": ()})
        if has_default and not config.log_stats
        else config
    )


def _traced(config: EngineConfig, endpoint: str | None) -> EngineConfig:
    """With the stat logger that sends spans there, whether or not it was chosen already."""
    if endpoint is None:
        return config
    options = next((choice.options for choice in config.stat_loggers if choice.name == TRACER), {})
    tracer = PluginChoice(name=TRACER, options={**options, "endpoint": endpoint})
    others = (choice for choice in config.stat_loggers if choice.name != TRACER)
    return config.model_copy(update={"stat_loggers": (*others, tracer)})


def _default_stat_loggers() -> list[str]:
    """The usual ones, as far as they are installed."""
    names = {entry.name for entry in installed("stat_logger")}
    return [name for name in DEFAULT_STAT_LOGGERS if name in names]
