"""State of a request in the front end: one stream for the caller, one completion per engine request; its log lines.
Front end.

New tokens collect in a completion until the caller reads them, so a slow caller costs memory for ids and text, never a
queue of outputs, and a fast engine costs one wake-up per read instead of per token.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from dataclasses import dataclass, field

import numpy as np

from tenonry.interfaces.io_processor import Detokenizer
from tenonry.messages import EngineCoreRequest
from tenonry.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from tenonry.sampling_params import OutputKind
from tenonry.stats import FinishedRequestStats

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Completion:
    """One engine request.

    `received_…`: received from the engine, not detokenised yet. `pending_…`: not read by the caller yet. The others:
    read. `delivered_ids`: all output tokens, from which the request resumes after the death of its engine.
    `is_scheduled`: it has run.
    """

    handle: int
    index: int
    stream: Stream
    detokenizer: Detokenizer | None
    delivered_ids: array[int]
    received_ids: list[int] = field(default_factory=list)
    received_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    pending_ids: list[int] = field(default_factory=list)
    pending_text: str = ""
    pending_logprobs: list[dict[int, Logprob]] | None = None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_generated: int = 0
    last_time: float = 0.0
    is_scheduled: bool = False

    def take(self, kind: OutputKind) -> CompletionOutput:
        """Return the output since the last call (DELTA), or all of it."""
        ids = self.pending_ids
        text = self.pending_text
        logprobs = self.pending_logprobs
        self.pending_ids = []
        self.pending_text = ""
        self.pending_logprobs = None
        if kind != OutputKind.DELTA:
            self.token_ids += ids
            self.text += text
            if logprobs is not None:
                self.logprobs = (self.logprobs or []) + logprobs
            ids = list(self.token_ids)
            text = self.text
            logprobs = self.logprobs
        return CompletionOutput(
            self.index, text, ids, self.finish_reason, self.stop_reason, logprobs
        )


@dataclass(slots=True, eq=False)
class Stream:
    """One caller request with its `n` completions. `take` never waits; `wait` does.

    `request`: the first of its engine requests. `ready`: completions with unread output, by index.
    """

    request: EngineCoreRequest
    request_id: str
    kind: OutputKind
    prompt: str | None
    prompt_token_ids: list[int]
    metrics: RequestMetrics
    completions: list[Completion] = field(default_factory=list)
    ready: dict[int, Completion] = field(default_factory=dict)
    engine_index: int = 0
    num_finished: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    kv_transfer_params: dict[str, object] | None = None
    pooled: np.ndarray | None = None
    weight_version: str = ""
    error: Exception | None = None
    waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        return self.num_finished == len(self.completions)

    @property
    def num_generated(self) -> int:
        """Generated tokens of all completions."""
        return sum(completion.num_generated for completion in self.completions)

    @property
    def is_ready(self) -> bool:
        """True if `take` returns an output."""
        return bool(self.ready) and (self.kind != OutputKind.FINAL or self.finished)

    def notify(self) -> None:
        """Wake a waiting caller if there is output."""
        waiter = self.waiter
        if waiter is not None and (self.error is not None or self.is_ready):
            self.waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done when `take` returns output or raises; await it immediately."""
        waiter = self.waiter = asyncio.get_running_loop().create_future()
        return waiter

    def take(self) -> RequestOutput | None:
        """Return the next output, or None. Raises the stream's error after the last output."""
        if not self.is_ready:
            if self.error is not None:
                raise self.error
            return None
        kind = self.kind
        chosen = sorted(self.ready) if kind == OutputKind.DELTA else range(len(self.completions))
        outputs = [self.completions[index].take(kind) for index in chosen]
        self.ready = {}
        error = self.error
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.prompt_token_ids,
            outputs,
            self.finished,
            self.num_cached_tokens,
            self.prompt_logprobs,
            self.metrics,
            None if error is None else str(error),
            self.kv_transfer_params,
            self.weight_version,
            self.pooled,
            getattr(error, "code", ""),
            getattr(error, "param", None),
        )

    # ------------------------------------------------------------------ log and statistics
    def log_added(self) -> None:
        """Log an accepted request, with the length of its prompt and no text."""
        logger.info(
            "request %s: added with %d prompt tokens, %s",
            self.request_id,
            len(self.prompt_token_ids),
            self.request.sampling_params,
        )

    def log_end(self) -> None:
        """Log the end of a request in one line: failed with its cause, aborted, or finished with its reason."""
        reasons = {each.finish_reason: None for each in self.completions}  # distinct, in order
        if self.error is not None:
            end = f"failed: {getattr(self.error, 'reason', self.error)}"
        elif "abort" in reasons:
            end = "aborted"
        else:
            end = f"finished: {', '.join(map(str, reasons))}"
        logger.info(
            "request %s: %s (%d prompt tokens, %d output tokens)",
            self.request_id,
            end,
            len(self.prompt_token_ids),
            self.num_generated,
        )

    def finished_stats(self, reason: str, now: float) -> FinishedRequestStats:
        """Return the record for stat loggers; `now` is the front end's monotonic clock."""
        metrics = self.metrics
        params = self.request.sampling_params
        elapsed = now - metrics.arrival_time
        stats = FinishedRequestStats(
            request_id=self.request_id,
            finish_reason=reason,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_generation_tokens=self.num_generated,
            num_cached_tokens=self.num_cached_tokens,
            e2e_latency_s=elapsed,
            queued_s=metrics.queued_s,
            num_preemptions=metrics.num_preemptions,
            max_tokens=params.max_tokens,
            n=params.n,
            tags=self.request.tags,
            trace_headers=self.request.trace_headers,
            start_time=time.time() - elapsed,
        )
        first = metrics.first_token_time
        if first:
            stats.ttft_s = first - metrics.arrival_time
            stats.prefill_s = max(0.0, stats.ttft_s - metrics.queued_s)
            stats.decode_s = max(0.0, metrics.last_token_time - first)
        return stats
