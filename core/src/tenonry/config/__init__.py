"""The one configuration of an engine: a flat, frozen pydantic model. Built in the front end, sent as text to children.

`tenonry.config.sources` reads variables, `tenonry_commands` flags and files. Chosen plugins add settings under plain
names like the kernel's; `tenonry.plugin.manager` finds their owners. Facts learnt after start-up are in `EngineFacts`
and `EngineInfo`, never here.
"""

from __future__ import annotations

import difflib
import functools
import types
import typing
from collections.abc import Container, Iterable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from tenonry.errors import ConfigError
from tenonry.gpus import visible_devices

STEP_TOKENS = 2048
CPU_STEP_TOKENS = 512  # of prompts, besides decoding rows: more in one step are no faster
SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def human_int(text: str) -> int:
    """An integer, or one with k, m, g (powers of 1000) or K, M, G (powers of 1024): 25.6k, 32K. Raises ValueError."""
    try:
        if text[-1:] in SUFFIXES:
            return round(float(text[:-1]) * SUFFIXES[text[-1]])
        return int(text)
    except (ValueError, OverflowError):
        raise ValueError(f"'{text}' is not an integer (32768, 25.6k and 32K are)") from None


def setting(
    default: Any = ...,
    *,
    group: str = "",
    flag: str | None = "",
    alias: str = "",
    env: str = "",
    nargs: str = "",
    capability: str = "",
    replaceable: bool = False,
    **bounds: Any,
) -> Any:
    """Declare a field of a settings model; without any of these arguments, a plain default is enough. `bounds`: see
    pydantic's `Field`.

    `group`: heading in the help instead of the owner's. `flag`: instead of the name with dashes; None for no flag.
    `alias`: a second flag. `env`: instead of the name in capitals after `TENONRY_`. `nargs`: "+" for several words
    after a list's flag. `capability`: required of the worker. `replaceable`: may change when engines are replaced.
    """
    facts: Any = locals().copy()
    return Field(default, json_schema_extra=facts, **bounds)


def fact(field: FieldInfo, name: str) -> Any:
    """Return an argument passed to `setting` for a field; empty for any other field."""
    facts: Any = field.json_schema_extra or {}
    return facts.get(name, "")


Section = TypeVar("Section", bound=BaseModel)


class Settings(BaseModel):
    """Immutable settings that reject unknown keys. Text from a variable or YAML file is parsed like a flag's."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with changed values, validated again. Raises pydantic's ValidationError."""
        return self.model_validate(self.model_dump(exclude_unset=True) | changes)

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        kind = plain_type(annotation)
        if value == "none" and kind is PluginChoice and kind is not annotation:
            return None
        if typing.get_origin(kind) is tuple:
            return read_list(value)
        return human_int(value) if kind is int and isinstance(value, str) else value

    @functools.cached_property
    def _sections(self) -> dict[type[BaseModel], Any]:
        return {}

    def section(self, model: type[Section]) -> Section:
        """Return the settings of a plugin by its model, validated once. Raises ConfigError naming each bad one."""
        if model not in self._sections:
            given, fields = self.model_extra or {}, model.model_fields
            values = {name: given[name] for name in fields if name in given}
            self._sections[model] = read(model, values, fields)
        section: Section = self._sections[model]
        return section


class PluginChoice(Settings):
    """A chosen plugin: an entry-point name, `module:Class` or `path.py:Class`, and its options."""

    name: str = Field(min_length=1, max_length=512)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        if value is None:
            value = "null"  # YAML parses this name as null
        return {"name": value} if isinstance(value, str) else value


class PluginPolicy(Settings):
    """Policy for hook modules: an unset `allow` allows all installed ones; `disable` always wins."""

    allow: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()


def _plugin(name: str = "", **facts: Any) -> Any:
    default = PluginChoice.model_construct(name=name) if name else None
    return setting(default, group="plugins", **facts)


_parallel = functools.partial(setting, group="parallelism")
_replaceable = functools.partial(setting, replaceable=True)


def read_list(value: Any) -> Any:
    """Parse one entry, or several in one text, where a list is expected."""
    if isinstance(value, str):
        filled = [part for part in map(str.strip, value.split(",")) if part]
        return filled or ("",)  # the model rejects a blank list
    return (value,) if isinstance(value, dict) else value


def dtype_name(value: Any) -> str:
    """Return the name of a data type that vLLM or torch spells differently."""
    name = str(value).removeprefix("torch.")
    return {"half": "float16", "float": "float32"}.get(name, name)


def plain_type(annotation: Any) -> Any:
    """Return the single type of `X | None`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(part for part in typing.get_args(annotation) if part is not types.NoneType)
    return annotation


class EngineConfig(Settings):
    """The kernel's settings, and as further keys those of chosen plugins, read by `section`.

    Wrong types and bad bounds are rejected by their path; keys without an owner when the plugins are resolved. The text
    under a setting is its description in help texts and in the reference.
    """

    model_config = ConfigDict(extra="allow")

    # the model
    model: str = setting(min_length=1, flag=None)
    """Model folder, hub id or registered name."""
    tokenizer: str | None = None
    """Tokenizer folder or hub id. Defaults to the model's."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(dtype_name)
    ] = "auto"
    """Data type of weights and KV cache."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """Device: auto, cpu or cuda."""
    seed: int = Field(0, ge=0)
    """Seed for requests without one, and for dummy weights."""
    load_format: Literal["auto", "safetensors", "sharded", "dummy"] = "auto"
    """Weight format. sharded: per-rank files of `save_sharded_state`; dummy: random weights."""
    max_model_len: int | None = Field(None, ge=1)
    """Maximum sequence length in tokens. Defaults to the model's."""
    skip_tokenizer_init: bool = False
    """Load no tokenizer; prompts must be token ids."""
    served_model_name: tuple[str, ...] = setting((), nargs="+")
    """Model names in the API. Defaults to the model's."""
    max_images: int = setting(0, ge=0, capability="media")
    """Maximum images per request. 0 disables image input and skips loading the vision encoder."""
    max_encoder_tokens: int = Field(0, ge=0)
    """Maximum image tokens encoded per step, or one larger image. 0: the token budget of the step."""

    # the batch and the KV cache
    max_num_seqs: int = _replaceable(256, ge=1, le=65536)
    """Maximum concurrent sequences."""
    max_num_batched_tokens: int | None = _replaceable(None, ge=1, le=1 << 24)
    """Token budget per step. Defaults to max(2048, max_num_seqs), or 512 + max_num_seqs where a CPU splits prompts."""
    block_size: int | None = Field(None, ge=1, le=4096)
    """KV block size in tokens. Defaults to the attention backend's choice."""
    num_gpu_blocks_override: int | None = _replaceable(None, ge=1)
    """Exact number of KV blocks."""
    gpu_memory_utilization: float = _replaceable(0.9, gt=0, le=1)
    """Fraction of device memory to use."""
    kv_cache_memory_bytes: int | None = _replaceable(None, ge=1)
    """Exact KV cache size in bytes."""
    state_cache_memory_bytes: int | None = _replaceable(None, ge=0)
    """Bytes of the KV cache for recurrent state snapshots. Defaults to a share of it; 0 disables them."""
    max_loras: int = setting(0, ge=0, le=1024, capability="lora")
    """Maximum distinct LoRA adapters per step. 0 disables adapters."""
    enable_prefix_caching: bool = _replaceable(True)
    """Reuse KV blocks of equal prefixes."""
    enable_chunked_prefill: bool = _replaceable(True)
    """Split long prompts over several steps."""
    async_scheduling: bool = _replaceable(True)
    """Allow several steps in flight."""
    max_round_tokens: int = _replaceable(8, ge=1, le=64)
    """Maximum tokens decoded per request and step while the queue is empty. 1 disables multi-token steps."""
    max_num_queued_reqs: int | None = Field(4096, ge=0)
    """Maximum queued requests. Further ones are rejected with 429."""

    # parallelism
    tensor_parallel_size: int = _parallel(1, ge=1, le=1024, alias="-tp")
    """Tensor parallel ranks."""
    pipeline_parallel_size: int = _parallel(1, ge=1, le=1024, alias="-pp")
    """Pipeline parallel stages."""
    data_parallel_size: int = _parallel(1, ge=1, le=65536, alias="-dp")
    """Number of engines."""
    data_parallel_size_local: int | None = _parallel(None, ge=0, le=65536, alias="-dpl")
    """Engines to start on this node. Defaults to all."""
    data_parallel_start_rank: int = _parallel(0, ge=0, le=65535, alias="-dpr")
    """First engine of this node (--headless)."""
    data_parallel_rank: int | None = _parallel(None, ge=0, le=65535, alias="-dpn")
    """Run only the engine of this rank, behind an external load balancer."""
    data_parallel_address: str = _parallel("127.0.0.1", alias="-dpa")
    """Address of the first node, for engines on other nodes."""
    data_parallel_rpc_port: int = _parallel(0, ge=0, le=65535, alias="-dpp")
    """Port of the first node for engines on other nodes. 0 picks a free one."""
    data_parallel_sync_steps: int = _parallel(32, ge=1, le=65536)
    """Steps between synchronisations of unfinished work."""
    enable_expert_parallel: bool = _parallel(False, alias="-ep")
    """Distribute the experts of each layer over the ranks of all engines, which then step together."""
    expert_rendezvous: str = _parallel("")
    """Rendezvous of these ranks: tcp://HOST:PORT, a free port of engine 0's node. Required for several nodes."""
    auth_key_file: str | None = _parallel(None)
    """Key file shared by the nodes of an instance."""

    # the plugins
    executor: PluginChoice = _plugin(
        "uni", replaceable=True, alias="--distributed-executor-backend"
    )
    """Executor of the ranks of one engine. Defaults to mp for more than one rank where it is installed."""
    scheduler: PluginChoice = _plugin("batching", replaceable=True, alias="--scheduler-cls")
    """Scheduler of an engine."""
    worker: PluginChoice = _plugin("auto")
    """Worker of each rank."""
    launcher: PluginChoice = _plugin("process")
    """Launcher of engine processes."""
    engine_recovery: PluginChoice = _plugin("auto")
    """Reaction to engine failure; auto restarts engines where tenonry-recovery is installed, else fails streams."""
    coordination: PluginChoice = _plugin("scale-out")
    """Coordination of several engines, front ends or nodes."""
    load_balancer: PluginChoice = _plugin("affinity", alias="--load-balancing")
    """Load balancer over engines."""
    io_processor: PluginChoice | None = _plugin("text")
    """IO processor: prompts to tokens, and tokens to text."""
    request_codec: PluginChoice = _plugin("plain")
    """Encoding of requests for engines."""
    kv_connector: PluginChoice | None = _plugin(capability="kv_connector")
    """KV connector: moves KV blocks in or out of the engine."""
    stat_loggers: tuple[PluginChoice, ...] = setting((), alias="--stat-logger", group="plugins")
    """Stat loggers to enable."""
    call_sets: tuple[PluginChoice, ...] | None = setting(None, alias="--call-set", group="plugins")
    """Call sets to enable; by default those of operations, adapters and pooling that are installed."""
    plugins: PluginPolicy = setting(PluginPolicy.model_construct(), flag=None)
    """Hook modules to allow or disable."""
    allow_experimental_plugins: bool = setting(False, group="plugins")
    """Allow third-party plugins on alpha extension points in this engine."""

    # operations
    shutdown_timeout: float = Field(30.0, ge=0, le=86400)
    """Seconds for running requests to finish after SIGTERM."""
    start_timeout: float = _replaceable(600.0, gt=0, le=86400)
    """Engine startup timeout in seconds."""
    step_timeout: float = _replaceable(300.0, gt=0, le=86400)
    """Heartbeat timeout in seconds, after which a process is killed."""
    stream_interval: int = Field(1, ge=1)
    """Tokens per streamed output. The first token and the end are sent immediately."""
    output_chunk_size: int = Field(128, ge=1)
    """Requests whose outputs a front end processes before other tasks of its event loop run."""
    log_stats: bool = True
    """Collect statistics for stat loggers."""
    log_requests: bool = False
    """Log each request when it arrives and when it ends."""
    process_note: str = setting("", flag=None)
    """Text after the names of engines in `tenonry ps`, such as the fallbacks in use."""

    @model_validator(mode="after")
    def _check(self) -> EngineConfig:
        budget = self.max_num_batched_tokens or 1 << 63
        if budget < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={budget} is below max_num_seqs={self.max_num_seqs}: a full batch could not "
                "decode; raise the first or lower the second"
            )
        if not self.enable_chunked_prefill and budget < (self.max_model_len or 0):
            raise ValueError(
                f"enable_chunked_prefill is off and max_num_batched_tokens={budget} is below "
                f"max_model_len={self.max_model_len}: the longest prompt would never fit into one step"
            )
        return self

    @property
    def step_token_budget(self) -> int:
        """`max_num_batched_tokens`, or its default.

        The duration of a step on a CPU is proportional to its tokens: beyond the efficient number, more tokens only
        delay streams and the first tokens of earlier prompts. But an image, or a prompt that may not be split, must fit
        into a step.
        """
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if self.may_use_gpus or self.max_images or not self.enable_chunked_prefill:
            return max(STEP_TOKENS, self.max_num_seqs)
        return CPU_STEP_TOKENS + self.max_num_seqs

    @property
    def may_use_gpus(self) -> bool:
        """True if a rank on this node may compute on a GPU."""
        return bool(visible_devices()) if self.device == "auto" else self.device != "cpu"

    @property
    def world_size(self) -> int:
        """Ranks of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def describe(self, secrets: Container[str] = ()) -> str:
        """Return the non-default settings as JSON for a log, without plugins' options and `secrets` among settings."""
        options = {"options": True, "__all__": {"options"}}
        hidden: Any = {name: True if name in secrets else options for name, _ in self}
        return self.model_dump_json(exclude_defaults=True, exclude=hidden)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint of the nearest known name, or ""."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def read(
    model: type[Section], values: Mapping[str, Any], fields: Mapping[str, FieldInfo]
) -> Section:
    """Validate settings. Raises ConfigError naming each bad one, with the nearest of `fields` for an unknown one."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, fields)) from None


def explain(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """Format a pydantic error as one line: path, value and bound of each problem; the nearest of `fields` for a wrong
    key.

    Values of fields without a `repr` are omitted.
    """
    lines = []
    for problem in error.errors(include_url=False):
        place = problem["loc"]
        path = ".".join(map(str, place))
        if problem["type"] == "extra_forbidden":
            lines.append(
                f"unknown setting '{path}'{nearest(path, fields if len(place) == 1 else ())}"
            )
        elif problem["type"] == "missing":
            lines.append(f"setting '{path}' is missing")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            field = fields.get(str(place[0])) if place else None
            value = f"={problem['input']!r}" if field is None or field.repr else ""
            lines.append(f"{path}{value}: {text}" if path else text)
    return "; ".join(lines)
