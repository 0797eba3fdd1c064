"""Messages between front end and engine: typed msgspec structs. Both processes.

A message to the engine is `[type, body, buffer …]`, with `ADD_HEADER` in front of the body of ADD; a message from the
engine is `[body, buffer …]`. `PROTOCOL_VERSION` is checked in the handshake; `epoch` counts restarts of an engine, so
that late frames of a dead engine are recognised.
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

    `output_token_ids` are output tokens already delivered elsewhere: they count as output for penalties, limits, stop
    conditions and seeds. `stop_token_ids` are all ids that end the request (end-of-sequence ids included unless
    ignored); `bad_words` token id sequences. `tags` are read by schedulers and stat loggers. `arrival_time`: arrival at
    the caller, in seconds since 1970, the origin of its times; by default now.
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
    """Terminal outcome of one request, and the numbers known only to the engine. `pooled`: f32[D].

    For a failure: `error` is its text, `code` an ErrorCode, `param` the request field at fault, if any.
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
    """First execution of a request: its queue time in seconds, and its prompt tokens found in the cache.

    Sent once, with the first result that counts: a reset or a preemption may drop the one of the first step.
    """

    handle: int
    queued_s: float
    num_cached_tokens: int


class EngineCoreOutputs(msgspec.Struct, array_like=True, kw_only=True):
    """The outputs of one step for one client: N requests got tokens.

    `handles` u64[N]; `token_ids` i32[T]; `offsets` i32[N+1], or empty when each request got exactly one token.
    `finished` requests may or may not be among `handles`; their tokens come first.

    A scheduler fills in `handles`, `token_ids`, `offsets`, `finished`, `scheduled`, and the log-probabilities of
    requests with `logprobs` or `prompt_logprobs`; the engine sets the rest. `client_of(handle)` is the client.
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
    dead: str | None = None  # reason of the engine's imminent end
    weight_version: str = ""
    blamed: str = ""  # the plugin that ended the engine, if known


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
    """The coordinator of several engines: class of its Coordination, and the endpoints that the class returned."""

    plugin: PluginRecord
    endpoints: str


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a built engine. `epoch`: epoch of its messages; `resolved`: plugins of its own extension points; `tasks`
    as in EngineInfo.
    """

    index: int
    epoch: int
    num_gpu_blocks: int
    block_size: int
    max_model_len: int
    resolved: dict[str, str] = {}
    tasks: dict[str, int] = {}


class HelloMessage(msgspec.Struct, kw_only=True, tag="HELLO"):
    """Engine to front end: the process has started. `versions`: the installed distributions of the plan. `plugins`:
    chosen plugins of the kinds that run in engines, kind → name and class.
    """

    local: bool
    protocol: int = PROTOCOL_VERSION
    node: str = ""
    versions: dict[str, str] = {}
    plugins: dict[str, str] = {}


class HandshakeMetadata(msgspec.Struct, kw_only=True, tag="INIT"):
    """Front end to engine: addresses, and number of engines. `rendezvous`: URL for the workers of all engines, as in
    WorkerContext; "" where engines do not step together.
    """

    addresses: ClientAddresses
    data_parallel_size: int = 1
    rendezvous: str = ""
    epoch: int = 0
    coordinator: CoordinatorFacts | None = None


class ReadyMessage(msgspec.Struct, kw_only=True, tag="READY"):
    """Engine to front end: the facts of the built engine."""

    facts: EngineFacts


class FailedMessage(msgspec.Struct, kw_only=True, tag="FAILED"):
    """Engine to front end: the engine could not be built, with the cause."""

    error: str


EngineHandshakeMessage = HelloMessage | ReadyMessage | FailedMessage


# ---------------------------------------------------------------- handles
# Request number for engine, wire and worker: a front end composes it of its index and a counter, so that it
# identifies the receiver of outputs.
CLIENT_SHIFT = 48  # the counter has 48 bits, the index of the front end the 16 above them


def make_handle(client: int, number: int) -> int:
    """Return the handle of a request by its number in one front end."""
    return (client << CLIENT_SHIFT) + number


def client_of(handle: int) -> int:
    """Index of the front end that made a handle."""
    return handle >> CLIENT_SHIFT
