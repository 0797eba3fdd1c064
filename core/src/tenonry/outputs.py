"""What users get back: the outputs of a request, complete or as far as the stream has come. Front end only."""

from __future__ import annotations

import enum

import msgspec


class FinishReason(enum.IntEnum):
    """Why a request ended: exactly one of these, exactly once."""

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


class CompletionOutput:
    """One of the `n` completions of a request.

    `text` and `token_ids` hold all so far or only what is new, as `SamplingParams.output_kind` says. `finish_reason`
    is None while it runs, then "stop", "length", "abort" or "error"; `stop_reason` the stop string or token id.
    """

    __slots__ = ("finish_reason", "index", "logprobs", "stop_reason", "text", "token_ids")

    def __init__(
        self,
        index: int,
        text: str,
        token_ids: list[int],
        finish_reason: str | None = None,
        stop_reason: int | str | None = None,
        logprobs: list[dict[int, Logprob]] | None = None,
    ) -> None:
        self.index = index
        self.text = text
        self.token_ids = token_ids
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self.logprobs = logprobs

    def __repr__(self) -> str:
        return (
            f"CompletionOutput(index={self.index}, text={self.text!r}, token_ids={self.token_ids}, "
            f"finish_reason={self.finish_reason!r}, stop_reason={self.stop_reason!r})"
        )


class RequestMetrics(msgspec.Struct, kw_only=True):
    """Times of one request by the front end's monotonic clock, in seconds; 0 means not yet."""

    arrival_time: float = 0.0
    first_token_time: float = 0.0
    last_token_time: float = 0.0
    queued_s: float = 0.0
    prefill_s: float = 0.0
    num_preemptions: int = 0


class RequestOutput:
    """The state of one request as a stream delivers it; `outputs` holds one CompletionOutput per completion."""

    __slots__ = (
        "error",
        "finished",
        "kv_transfer_params",
        "metrics",
        "num_cached_tokens",
        "outputs",
        "prompt",
        "prompt_logprobs",
        "prompt_token_ids",
        "request_id",
    )

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        outputs: list[CompletionOutput],
        finished: bool,
        *,
        num_cached_tokens: int = 0,
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None,
        metrics: RequestMetrics | None = None,
        error: str | None = None,
        kv_transfer_params: dict[str, object] | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.outputs = outputs
        self.finished = finished
        self.num_cached_tokens = num_cached_tokens
        self.prompt_logprobs = prompt_logprobs
        self.metrics = metrics
        self.error = error
        self.kv_transfer_params = kv_transfer_params

    def __repr__(self) -> str:
        return f"RequestOutput(request_id={self.request_id!r}, finished={self.finished}, outputs={self.outputs})"
