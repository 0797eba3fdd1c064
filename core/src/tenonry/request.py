"""A request from the view of the scheduler. Engine process; the engine builds it, schedulers read it."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np

from tenonry.messages import EngineCoreRequest
from tenonry.outputs import FinishReason
from tenonry.step import I32, NewRow


class RequestStatus(enum.IntEnum):
    """State of a request; everything from FINISHED on is terminal."""

    WAITING = 0
    WAITING_FOR_KV = 1
    PREEMPTED = 2
    RUNNING = 3
    FINISHED = 4


class Request:
    """One request inside the engine. Columns of running requests live in the scheduler; this object holds the rarely
    changing part.

    `token_ids` i32[n] are the prompt and the output tokens known when the request last left a row (or arrived);
    `num_prompt_tokens` of them are prompt. `arrival` counts requests in order of arrival; `arrival_time` is the
    engine's monotonic clock in seconds, at the caller's `arrival_time` if set. `row` is −1 unless running.
    `max_total_tokens` is its maximum length, prompt included. `source` is the front end's message: sampling parameters,
    tags, cache salt, adapter.

    The scheduler sets `row`, `status`, `num_cached_tokens` (at the first start; −1 before), `num_preemptions`,
    `finish_reason`, and, when a request leaves its row, `token_ids` and `num_output_tokens`. `key` is its own, for a
    place in the queue. `BaseScheduler` keeps all of them current.
    """

    __slots__ = (
        "arrival", "arrival_time", "finish_reason", "handle", "key", "max_total_tokens", "num_cached_tokens",
        "num_output_tokens", "num_preemptions", "num_prompt_tokens", "row", "source", "status", "token_ids",
    )  # fmt: skip

    def __init__(
        self, source: EngineCoreRequest, arrival: int, arrival_time: float, max_model_len: int
    ) -> None:
        self.source = source
        self.handle = source.handle
        self.arrival = arrival
        self.arrival_time = arrival_time - source.waited_s
        self.num_prompt_tokens = len(source.prompt_token_ids)
        self.num_output_tokens = len(source.output_token_ids)
        self.token_ids = source.prompt_token_ids
        if self.num_output_tokens:
            self.token_ids = np.concatenate(
                [source.prompt_token_ids, np.asarray(source.output_token_ids, np.int32)]
            )
        self.max_total_tokens = source.sampling_params.max_total_tokens(
            self.num_prompt_tokens, max_model_len
        )
        self.status = RequestStatus.WAITING
        self.row = -1
        self.num_cached_tokens = -1  # −1 until first scheduled
        self.num_preemptions = 0
        self.finish_reason: FinishReason | None = None
        self.key: object = None  # set by a scheduling policy: its position in the queue

    def new_row(self, row: int, num_computed: int, block_ids: tuple[I32, ...]) -> NewRow:
        """Return the row for workers that run the request; arguments as in `NewRow`."""
        source = self.source
        return NewRow(
            row=row,
            handle=self.handle,
            token_ids=self.token_ids,
            num_computed=num_computed,
            num_output=self.num_output_tokens,
            block_ids=block_ids,
            sampling=source.sampling_params,
            stop_token_ids=source.stop_token_ids,
            bad_words=source.bad_words,
            adapter=source.adapter,
            features=source.features and dict(source.features),
            media=source.media and source.media.copied(),
        )

    @property
    def request_id(self) -> str:
        """Request id of the caller."""
        return self.source.request_id

    @property
    def priority(self) -> int:
        """Priority; lower values run first."""
        return self.source.priority

    @property
    def tags(self) -> Mapping[str, str | float]:
        return self.source.tags

    @property
    def num_tokens(self) -> int:
        """Number of tokens known when the request last left a row, or arrived."""
        return len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status >= RequestStatus.FINISHED

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.status.name}, row={self.row}, tokens={self.num_tokens})"
