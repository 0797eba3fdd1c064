"""Values and base classes in vLLM's shape (0.11 and later): the names and units that its plugins read.

Fields without a counterpart in tenonry are absent, so that reading one fails by name instead of returning a zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tenonry.outputs import FinishReason


class _Partial:
    """Base of the values: an unknown attribute is named together with those that exist."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(sorted(vars(self)))
        raise AttributeError(
            f"tenonry-vllm-shim has no {type(self).__name__}.{name}; it has: {known}"
        )


@dataclass
class PrefixCacheStats(_Partial):
    """Prefix cache lookups since the previous record, in tokens. `requests` is not counted."""

    queries: int = 0
    hits: int = 0
    reset: bool = False


@dataclass
class SpecDecodingStats(_Partial):
    """Draft tokens since the previous record."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass
class SchedulerStats(_Partial):
    """State of one engine after a step. `kv_cache_usage`: 0 to 1."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    spec_decoding_stats: SpecDecodingStats | None = None


@dataclass
class FinishedRequestStats(_Partial):
    """One request that ended; times in seconds."""

    finish_reason: FinishReason
    e2e_latency: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    max_tokens_param: int | None = None
    queued_time: float = 0.0
    prefill_time: float = 0.0
    inference_time: float = 0.0
    decode_time: float = 0.0
    mean_time_per_output_token: float = 0.0
    num_cached_tokens: int = 0
    is_corrupted: bool = False


@dataclass
class IterationStats(_Partial):
    """Outputs of one engine that arrived together. `iteration_timestamp`: seconds since 1970."""

    iteration_timestamp: float = 0.0
    num_generation_tokens: int = 0
    num_prompt_tokens: int = 0
    num_preempted_reqs: int = 0
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
    max_num_generation_tokens_iter: list[int] = field(default_factory=list)
    n_params_iter: list[int] = field(default_factory=list)
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)


class StatLoggerBase(ABC):
    """Base class of stat loggers, one instance for each engine."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Receive the numbers of a step."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Called when the engine is ready."""

    def log(self) -> None:  # noqa: B027 - as in vLLM
        """Called at a regular interval."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:  # noqa: B027 - as in vLLM
        """Called when the engine falls asleep or wakes up."""


class AggregateStatLoggerBase(StatLoggerBase):
    """Base class of stat loggers with one instance for all engines."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None: ...


In = TypeVar("In")
Out = TypeVar("Out")


class IOProcessor(ABC, Generic[In, Out]):
    """Base class of IO processors: any data to a prompt, pooled vectors to any result."""

    def __init__(self, vllm_config: Any, renderer: Any = None) -> None:
        self.vllm_config = vllm_config

    def parse_data(self, data: object) -> In:
        """Check and convert the `data` of a request."""
        raise NotImplementedError

    @abstractmethod
    def pre_process(self, prompt: In, request_id: str | None = None, **kwargs: Any) -> Any:
        """Return the model's prompt, or prompts."""

    async def pre_process_async(
        self, prompt: In, request_id: str | None = None, **kwargs: Any
    ) -> Any:
        """As `pre_process`."""
        return self.pre_process(prompt, request_id, **kwargs)

    @abstractmethod
    def post_process(
        self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any
    ) -> Out:
        """Return the result for the caller."""

    async def post_process_async(
        self,
        model_output: AsyncGenerator[tuple[int, Any], None],
        request_id: str | None = None,
        **kwargs: Any,
    ) -> Out:
        """As `post_process`, for outputs that arrive with their indexes."""
        found = sorted([each async for each in model_output], key=lambda each: each[0])
        return self.post_process([output for _, output in found], request_id, **kwargs)


@dataclass
class PoolingOutput(_Partial):
    """`data` f32[D]."""

    data: Any


@dataclass
class PoolingRequestOutput(_Partial):
    """Answer of the model to one prompt."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0
