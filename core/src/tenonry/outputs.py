"""Outputs of a request for users, complete or partial. Front end only."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from tenonry.errors import EngineGenerateError


class FinishReason(enum.IntEnum):
    """Reason for the end of a request: exactly one of these, exactly once."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class Logprob(msgspec.Struct, frozen=True):
    """Log-probability of one token at one position; `rank` 1 is the most likely token of the vocabulary."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class CompletionOutput(msgspec.Struct):
    """One of the `n` completions of a request.

    `text` and `token_ids` hold all so far or only the new part, by `SamplingParams.output_kind`. `finish_reason`
    is None while it runs, then "stop", "length", "abort" or "error"; `stop_reason` the stop string or token id.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None


class PoolingOutput(msgspec.Struct, frozen=True):
    """The answer to a pooling request: `data` f32[D], a vector or the scores of a head."""

    request_id: str
    prompt_token_ids: list[int]
    data: Any  # as `RequestOutput.pooled`


class RequestMetrics(msgspec.Struct, kw_only=True):
    """Times of one request by the front end's monotonic clock, in seconds; 0 means not yet."""

    arrival_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    queued_s: float = 0.0
    num_preemptions: int = 0


class RequestOutput(msgspec.Struct):
    """The state of one request as a stream delivers it; `outputs` holds one CompletionOutput per completion.

    `weight_version`: version of the weights of its newest tokens; "" for the initial weights. `pooled` f32[D]: the
    vector of a pooling request. `error_code`: an ErrorCode; `error_param`: the field that caused the error.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestMetrics | None = None
    error: str | None = None
    kv_transfer_params: dict[str, object] | None = None
    weight_version: str = ""
    pooled: Any = None  # an array; numpy is not imported only for its name
    error_code: str = ""
    error_param: str | None = None

    def failure(self) -> EngineGenerateError:
        """Return the exception of an output whose finish reason is "error"."""
        reason = self.error or "no reason given"
        return EngineGenerateError(reason, self.error_code, self.error_param)
