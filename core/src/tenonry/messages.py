"""Everything that crosses between a front end and an engine. Typed msgspec structs; both processes.

A message to the engine is `[type, body, buffer …]`, with `ADD_HEADER` in front of the body of ADD; a message from the
engine is `[body, buffer …]`. `PROTOCOL_VERSION` is checked in the handshake; `epoch` counts restarts of an engine, so
that late frames of a dead one are recognised.
"""

from __future__ import annotations

import enum
import struct
import time
from typing import Annotated, Any

import msgspec
import numpy as np

from tenonry.info import PluginRecord
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams, needs
from tenonry.stats import SchedulerStats
from tenonry.step import I32, NO_ROWS, Adapter, Media, PromptLogprobs, TokenLogprobs

PROTOCOL_VERSION = 1
ADD_HEADER = struct.Struct("<3Q")  # handle, epoch of the engine, tag of the router or 0


class RequestType(enum.Enum):
    """First frame of a message to the engine: one byte."""

    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"


class EngineCoreRequest(
    msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, kw_only=True
):
    """A request ready for the engine. `prompt_token_ids` i32[n].

    `output_token_ids` are output tokens already delivered elsewhere: they count as output for penalties, limits,
    stop conditions and seeds. `stop_token_ids` are all ids that end the request (end-of-sequence ids included unless
    ignored); `bad_words` token id sequences. `tags` are read by schedulers and stat loggers. `arrival_time`: when it
    came to the caller, in seconds since 1970, from which its times count; by default now.
    """

    handle: int
    request_id: str
    prompt_token_ids: I32
    sampling_params: SamplingParams
    priority: int = 0
    output_token_ids: list[int] = []
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    cache_salt: str | None = None
    tags: dict[str, str | float] = {}
    adapter: Annotated[Adapter | None, needs("lora")] = None
    features: Annotated[dict[str, np.ndarray] | None, needs("features")] = None
    media: Annotated[Media | None, needs("media")] = None
    kv_transfer_params: dict[str, Any] | None = None
    trace_headers: dict[str, str] | None = None
    data_parallel_rank: int | None = None
    arrival_time: float | None = None

    @property
    def waited_s(self) -> float:
        """Seconds since `arrival_time`."""
        return max(0.0, time.time() - self.arrival_time) if self.arrival_time else 0.0


class FinishedOutput(msgspec.Struct, array_like=True):
    """The terminal outcome of one request, and the numbers that only the engine knows. `pooled`: f32[D].

    Of a failure: `error` is its text, `code` an ErrorCode, `param` the field of the request, where one is the cause.
    """

    handle: int
    reason: FinishReason
    stop_token_id: int | None = None
    error: str | None = None
    num_preemptions: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    pooled: np.ndarray | None = None
    code: str = ""
    param: str | None = None


class ScheduledOutput(msgspec.Struct, array_like=True):
    """A request ran for the first time: how long it queued, in seconds, and its prompt tokens found in the cache."""

    handle: int
    queued_s: float
    num_cached_tokens: int


class EngineCoreOutputs(msgspec.Struct, array_like=True, kw_only=True):
    """The outputs of one step for one client: N requests got tokens.

    `handles` u64[N]; `token_ids` i32[T]; `offsets` i32[N+1], or empty when each request got exactly one token.
    `finished` requests may or may not be among `handles`; their tokens come first.
    """

    engine_index: int = 0
    epoch: int = 0
    handles: np.ndarray = np.empty(0, np.uint64)
    token_ids: I32 = NO_ROWS
    offsets: I32 = NO_ROWS
    finished: list[FinishedOutput] = []
    scheduled: list[ScheduledOutput] = []
    logprobs: TokenLogprobs | None = None  # `row` indexes `handles`
    prompt_logprobs: list[PromptLogprobs] = []  # `row` indexes `prompt_logprobs_handles`
    prompt_logprobs_handles: list[int] = []
    scheduler_stats: SchedulerStats | None = None
    utility: UtilityResult | None = None
    dead: str | None = None  # the engine is about to end; the reason
    weight_version: str = ""
    blamed: str = ""  # the plugin that ended the engine, where one is known


OutputsByClient = dict[int, EngineCoreOutputs]


class UtilityCall(msgspec.Struct, array_like=True):
    """Call a method of the engine's allow-list by name; arguments are plain values."""

    call_id: int
    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class UtilityResult(msgspec.Struct, array_like=True):
    """Answer to a UtilityCall: `failure` is None, or text that names the error."""

    call_id: int
    result: Any = None
    failure: str | None = None


ClientAddresses = list[tuple[str, str]]  # input and output of each front end


class CoordinatorFacts(msgspec.Struct, frozen=True):
    """The coordinator of several engines: class of its Coordination, and the endpoints that this one returned."""

    plugin: PluginRecord
    endpoints: str


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of an engine that has been built. `epoch` is that of its messages; `resolved` what its own
    extension points resolved to; `tasks` as in EngineInfo.
    """

    index: int
    epoch: int
    num_gpu_blocks: int
    block_size: int
    max_model_len: int
    resolved: dict[str, str] = {}
    tasks: dict[str, int] = {}


class HelloMessage(msgspec.Struct, kw_only=True, tag="HELLO"):
    """Engine to front end: the process has started. `versions`: the distributions of the plan as this process finds
    them. `plugins`: what the plan of this process chose, kind → name and class, of the kinds that run in engines.
    """

    local: bool
    protocol: int = PROTOCOL_VERSION
    node: str = ""
    versions: dict[str, str] = {}
    plugins: dict[str, str] = {}


class HandshakeMetadata(msgspec.Struct, kw_only=True, tag="INIT"):
    """Front end to engine: where to connect, and how many engines there are. `rendezvous` is where the workers of all
    engines may meet, as in WorkerContext; "" where engines do not step together.
    """

    addresses: ClientAddresses
    data_parallel_size: int = 1
    rendezvous: str = ""
    epoch: int = 0
    coordinator: CoordinatorFacts | None = None


class ReadyMessage(msgspec.Struct, kw_only=True, tag="READY"):
    """Engine to front end: the engine is built; its facts."""

    facts: EngineFacts


class FailedMessage(msgspec.Struct, kw_only=True, tag="FAILED"):
    """Engine to front end: the engine could not be built, and why."""

    error: str


EngineHandshakeMessage = HelloMessage | ReadyMessage | FailedMessage


# ---------------------------------------------------------------- handles
# The number by which engine, wire and worker know a request: a front end makes it of its index and a counter, so that
# it says by itself where outputs go.
CLIENT_SHIFT = 48  # the counter has 48 bits, the index of the front end the 16 above them


def make_handle(client: int, number: int) -> int:
    """The handle of the request with this number of one front end."""
    return (client << CLIENT_SHIFT) + number


def client_of(handle: int) -> int:
    """The index of the front end that made a handle."""
    return handle >> CLIENT_SHIFT
