"""The server's own settings, in addition to `EngineConfig`: one frozen model for flags, environment and YAML. Light;
front end.

The YAML file of `--config` holds the engine's and the server's settings together; each model reads its own keys.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal, get_origin

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from tenonry.config import EngineConfig, PluginChoice, Settings, human_int, setting
from tenonry.errors import ConfigError
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import KINDS
from tenonry_commands.arguments import sources_from_arguments, with_options
from tenonry_commands.familiar_flags import add_familiar_flags
from tenonry_commands.flags import add_flags
from tenonry_commands.sources import Sources
from tenonry_openai_server.grouped import check_grouped
from tenonry_openai_server.prefill import paired
from tenonry_openai_server.route_settings import default_routes, route_settings

# vLLM's names of parsers, where they differ; other names are unchanged.
FAMILIAR_PARSERS = {
    "cohere_command3": "cohere",
    "deepseek_v3": "deepseek",
    "deepseek_v31": "deepseek",
    "deepseek_v32": "deepseek-v3.2",
    "deepseek_v4": "deepseek-v4",
    "ernie45": "hermes",
    "gemma4": "gemma",
    "gigachat3": "gigachat",
    "glm45": "glm",
    "glm47": "glm",
    "granite-20b-fc": "granite-code",
    "granite4": "hermes",
    "hunyuan_a13b": "tool-calls",
    "jamba": "tool-calls",
    "kimi_k2": "kimi",
    "llama3_json": "llama",
    "llama4_json": "llama",
    "llama4_pythonic": "pythonic",
    "minimax_m2": "minimax",
    "olmo3": "olmo",
    "openai": "harmony",
    "phi4_mini_json": "functools",
    "qwen3_coder": "qwen-coder",
    "qwen3_xml": "qwen-coder",
    "seed_oss": "seed-coder",
    "xlam": "llama",
}
FAMILIAR_REASONING = {
    "cohere_command3": "cohere",
    "deepseek_r1": "think",
    "deepseek_v3": "think",
    "deepseek_v4": "think",
    "ernie45": "granite-think",
    "gemma4": "gemma-think",
    "glm45": "think",
    "granite": "granite-think",
    "hunyuan_a13b": "hunyuan-think",
    "kimi_k2": "think",
    "minimax_m2": "think",
    "mistral": "mistral-think",
    "olmo3": "think",
    "openai_gptoss": "harmony",
    "qwen3": "think",
    "seed_oss": "seed-think",
}
DEFAULT_STAT_LOGGERS = ("console", "prometheus")
TRACER = "opentelemetry"  # the stat logger required by an endpoint for traces


class ServerConfig(Settings):
    """Settings of the HTTP server, and as further keys those of its routes, read by `section`."""

    model_config = ConfigDict(extra="allow")

    host: str = Field(
        "127.0.0.1", min_length=1, max_length=255, description="Address to bind; 0.0.0.0 for all."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to bind. 0 picks a free one.")
    uds: str | None = Field(
        None, min_length=1, description="Unix socket to bind instead of host and port."
    )
    api_key: tuple[str, ...] = Field(
        (), description="API key required from clients; repeat for several.", repr=False
    )
    enable_operator_routes: bool = Field(
        False,
        description="Enable routes that control the engines: /sleep, /update_weights, "
        "adapters, …. Requires an API "
        "key.",
    )
    lora_folder: str | None = Field(
        None,
        min_length=1,
        description="Folder of adapters that are loaded when a request names them as its model. Requires "
        "--max-loras.",
    )
    max_folder_loras: int = Field(
        0,
        ge=0,
        le=1 << 16,
        description="Maximum adapters of that folder loaded at a time; the least recently used is evicted. "
        "0: --max-loras.",
    )
    weight_source: tuple[str, ...] = Field(
        (),
        description="Folder readable by /update_weights, or shm:PREFIX of shared memory; repeat for several.",
    )
    front_end_profile_dir: str | None = Field(
        None,
        min_length=1,
        description="Folder for profiles of the event loop, between /start_profile and /stop_profile.",
    )
    front_end_profile_gzip: bool = Field(False, description="Compress these profiles.")
    allowed_hosts: tuple[str, ...] = Field(
        (), description="Accepted host names besides local ones."
    )
    allowed_origins: tuple[str, ...] = Field(
        (), description="Origins of web pages that can call the server, or *."
    )
    root_path: str = Field(
        "", pattern=r"^(/.*[^/])?$", description="Path prefix removed by a proxy in front."
    )
    max_body_bytes: int = Field(
        16 << 20, ge=1024, le=1 << 30, description="Maximum request body in bytes."
    )
    max_header_bytes: int = Field(
        64 << 10, ge=1024, le=1 << 20, description="Maximum request line and headers in bytes."
    )
    receive_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="Timeout in seconds for headers, and for each part of a body.",
    )
    keep_alive_timeout: int = Field(
        65, ge=1, le=3600, description="Idle connection timeout in seconds."
    )
    backlog: int = Field(
        4096, ge=1, le=65535, description="Maximum connections waiting to be accepted."
    )
    route: tuple[str, ...] = Field(
        (),
        description="Route plugin to mount; repeat for several. Defaults to responses, messages, pooling, "
        "page and tenant-limits where installed.",
    )
    api_server_count: int = setting(
        1, ge=1, le=256, alias="-asc", description="API server processes that share the engines."
    )
    api_server_death: Literal["restart", "stop"] = Field(
        "restart",
        description="On failure of one of several API servers: `restart` it, or `stop` all.",
    )
    prefill_engines: int = Field(
        0,
        ge=0,
        le=1023,
        description="Engines, of those of --data-parallel-size, dedicated to prefill.",
    )
    prefill_min_tokens: int = Field(
        256, ge=1, description="Minimum prompt length in tokens for prefill on another engine."
    )
    unknown_fields: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="Unknown request fields: `ignore` and list them in the response header "
        "x-tenonry-ignored, or `refuse` the request.",
    )
    schema_keywords: Literal["strict", "lenient"] = Field(
        "strict",
        description="JSON schema keywords that cannot be enforced: `strict` rejects the request, `lenient` "
        "drops them and lists them in the response header x-tenonry-ignored.",
    )
    output_parser: str = Field(
        "auto",
        min_length=1,
        max_length=1024,
        description="Parser of chat answers, such as think+hermes; none, or auto by the chat template.",
    )
    tool_call_parser: str | None = Field(
        None, min_length=1, max_length=256, description="Tool call parser, by vLLM's name."
    )
    reasoning_parser: str | None = Field(
        None, min_length=1, max_length=256, description="Reasoning parser, by vLLM's name."
    )
    enable_auto_tool_choice: bool = Field(
        False, description="No effect: tool calls are parsed wherever a request offers tools."
    )
    headless: bool = Field(
        False, description="Run only the engines of this node, for a server on another node."
    )
    otlp_traces_endpoint: str | None = Field(
        None,
        min_length=1,
        description=f"Collector for a span per request, from the stat logger {TRACER}.",
    )
    disable_access_log: bool = Field(False, description="Disable the log line per HTTP request.")
    ssl_certfile: str | None = Field(None, description="Certificate file. Enables HTTPS.")
    ssl_keyfile: str | None = Field(None, description="Key file of the certificate.")
    ssl_keyfile_password: str | None = Field(
        None, description="Password of the key file.", repr=False
    )
    ssl_ca_certs: str | None = Field(
        None, description="Authorities file for required client certificates."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nothing(cls, values: Any) -> Any:
        """A setting without a value, as YAML writes it, means the default."""
        return {name: value for name, value in values.items() if value is not None}

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Parse text from a variable or a YAML file as a flag's; a single text is accepted for a list."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        if not isinstance(value, str):
            return value
        if annotation is int:
            return human_int(value)
        return (value,) if get_origin(annotation) is tuple else value

    @field_validator("allowed_origins", mode="before")
    @classmethod
    def _read_origins(cls, values: Any) -> Any:
        """Accept a JSON list as an entry, like vLLM: no origin looks like one."""
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
    def _check_operator_routes(self) -> ServerConfig:
        if self.enable_operator_routes and not self.api_key:
            raise ValueError("enable_operator_routes needs an api_key")
        if self.weight_source and not self.enable_operator_routes:
            raise ValueError("weight_source is for /update_weights: enable_operator_routes as well")
        return self

    @model_validator(mode="after")
    def _check_lora_folder(self) -> ServerConfig:
        if self.lora_folder is None:
            if self.max_folder_loras:
                raise ValueError("max_folder_loras needs a lora_folder")
        elif self.api_server_count > 1:
            raise ValueError(
                f"lora_folder: none of api_server_count={self.api_server_count} API servers knows which adapters the "
                "requests of the others use; give api_server_count=1"
            )
        elif not Path(self.lora_folder).is_dir():
            raise ValueError(f"lora_folder={self.lora_folder!r} is no folder")
        return self

    @model_validator(mode="after")
    def _check_profile(self) -> ServerConfig:
        if self.front_end_profile_dir is None:
            if self.front_end_profile_gzip:
                raise ValueError("front_end_profile_gzip needs a front_end_profile_dir")
        elif not self.enable_operator_routes:
            raise ValueError(
                "front_end_profile_dir is for /start_profile: enable_operator_routes as well"
            )
        elif self.api_server_count > 1:
            raise ValueError(
                f"front_end_profile_dir: /start_profile reaches one of api_server_count={self.api_server_count} API "
                "servers, and /stop_profile another; give api_server_count=1"
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> ServerConfig:
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_ca_certs):
            raise ValueError("ssl_keyfile and ssl_ca_certs need ssl_certfile")
        return self

    @model_validator(mode="after")
    def _check_parsers(self) -> ServerConfig:
        if self.output_parser != "auto" and (self.tool_call_parser or self.reasoning_parser):
            raise ValueError(
                "output_parser includes tool_call_parser and reasoning_parser; give one or "
                "the other"
            )
        return self

    @property
    def parser_names(self) -> str:
        """`output_parser`, or its equivalent in vLLM's names of the two halves."""
        reasoning = self.reasoning_parser or ""
        calls = self.tool_call_parser or ""
        names = (FAMILIAR_REASONING.get(reasoning, reasoning), FAMILIAR_PARSERS.get(calls, calls))
        return "+".join(dict.fromkeys(filter(None, names))) or self.output_parser

    @property
    def url(self) -> str:
        """URL of the server for clients; a wildcard address is shown as this machine's own."""
        if self.uds:
            return f"unix:{self.uds}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104  shown, not bound
        scheme = "https" if self.ssl_certfile else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.root_path}"


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag per field of ServerConfig."""
    add_flags(parser, ServerConfig, "server")
    add_familiar_flags(parser)


def configs_from_arguments(args: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """The two configurations that flags, environment and `--config` describe, each checked once. Raises ConfigError."""
    sources = sources_from_arguments(args, ServerConfig)
    server = server_config(sources)
    return engine_config(sources, server, args), server


def server_config(sources: Sources) -> ServerConfig:
    """Return the server's configuration, with the default routes if unset. Raises ConfigError and PluginError."""
    values = sources.values(ServerConfig)
    server = sources.make(ServerConfig, {"route": default_routes(), **values})
    route_settings(server, server.route)
    return server


def engine_config(
    sources: Sources, server: ServerConfig, args: argparse.Namespace, **others: Any
) -> EngineConfig:
    """The engine's configuration; `others` win over all sources. Raises ConfigError."""
    values = sources.values(EngineConfig) | others
    config = sources.make(EngineConfig, values)
    if "stat_loggers" not in values and config.log_stats:
        config = config.replaced(stat_loggers=_default_stat_loggers())
    config = with_options(config, args)
    check_grouped(config, server.api_server_count, server.prefill_engines)
    if server.lora_folder is not None and not config.max_loras:
        raise ConfigError(
            "lora_folder: no adapters are served; add --max-loras and how many different ones a step may have"
        )
    if server.prefill_engines:
        config = paired(config, server.prefill_engines)
    if server.otlp_traces_endpoint is not None:
        config = _traced(config, server.otlp_traces_endpoint)
    return config


def _traced(config: EngineConfig, endpoint: str) -> EngineConfig:
    """Configuration with the stat logger that sends traces to this endpoint."""
    loggers = config.stat_loggers
    options = next((choice.options for choice in loggers if choice.name == TRACER), {})
    others = [choice for choice in loggers if choice.name != TRACER]
    tracer = PluginChoice(name=TRACER, options={**options, "endpoint": endpoint})
    return config.replaced(stat_loggers=[*others, tracer])


def _default_stat_loggers() -> list[str]:
    """Installed default stat loggers."""
    names = {entry.name for entry in installed(KINDS["stat_logger"])}
    return [name for name in DEFAULT_STAT_LOGGERS if name in names]


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
