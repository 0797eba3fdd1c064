"""A scheduler on the kernel's interface alone: first come, first served, one step at a time, no preemption."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.messages import (
    EngineCoreOutputs,
    FinishedOutput,
    OutputsByClient,
    ScheduledOutput,
    client_of,
)
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.stats import SchedulerStats
from tenonry.step import I32, ModelRunnerOutput, NewRow, SchedulerOutput


class Row:
    """A request that runs: its blocks, and how many of its tokens are computed and known."""

    def __init__(self, request: Request, block_ids: list[int]) -> None:
        self.request = request
        self.block_ids = block_ids
        self.num_computed = 0
        self.num_tokens = request.num_tokens


class QueueScheduler(Scheduler):
    """Reserves all blocks that a request can need when it starts."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self._block_size = context.kv_cache.block_size
        self._free_blocks = list(range(context.kv_cache.num_blocks))
        self._free_rows = list(range(context.config.max_num_seqs))
        self._waiting: deque[Request] = deque()
        self._rows: dict[int, Row] = {}
        self._gone: list[int] = []
        self._num_steps = 0

    # ------------------------------------------------------------------ requests
    def add_request(self, request: Request) -> None:
        needed = self._num_blocks(request)
        if needed > self.context.kv_cache.num_blocks:
            raise RequestError(f"the request needs {needed} blocks, more than there are", "prompt")
        self._waiting.append(request)

    def _num_blocks(self, request: Request) -> int:
        return -(-request.max_total_tokens // self._block_size)

    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        wanted = None if handles is None else set(handles)
        ended = [each for each in self._waiting if wanted is None or each.handle in wanted]
        self._waiting = deque(each for each in self._waiting if each not in ended)
        for index, row in list(self._rows.items()):
            if wanted is None or row.request.handle in wanted:
                self._free(index)
                ended.append(row.request)
        for request in ended:
            request.status = RequestStatus.FINISHED
            request.finish_reason = reason
        return ended

    def _free(self, index: int) -> None:
        """The row leaves with the next step."""
        self._free_blocks += self._rows.pop(index).block_ids
        self._gone.append(index)

    # ------------------------------------------------------------------ steps
    def schedule(self) -> SchedulerOutput:
        gone, self._gone = self._gone, []
        new = self._admit()
        self._free_rows += gone  # only the next step may use them
        budget = self.context.config.step_token_budget
        chosen: list[int] = []
        counts: list[int] = []
        for index, row in self._rows.items():
            count = min(row.num_tokens - row.num_computed, budget)
            if count:
                chosen.append(index)
                counts.append(count)
                budget -= count
        samples = []
        for index, count in zip(chosen, counts, strict=True):
            row = self._rows[index]
            row.num_computed += count
            samples.append(row.num_computed == row.num_tokens)
        step_id = self._num_steps
        self._num_steps += 1
        return SchedulerOutput(
            step_id=step_id,
            gone=_column(gone),
            new=new,
            row=_column(chosen),
            num_tokens=_column(counts),
            next_token=np.full(len(chosen), -1, np.int32),
            samples=np.array(samples, np.bool_),
            generation=np.zeros(len(chosen), np.int32),
            total_tokens=sum(counts),
        )

    def _admit(self) -> list[NewRow]:
        new = []
        while self._waiting and self._free_rows:
            request = self._waiting[0]
            count = self._num_blocks(request)
            if count > len(self._free_blocks):
                break
            self._waiting.popleft()
            blocks, self._free_blocks = self._free_blocks[:count], self._free_blocks[count:]
            request.row = self._free_rows.pop()
            request.status = RequestStatus.RUNNING
            self._rows[request.row] = Row(request, blocks)
            new.append(request.new_row(request.row, 0, (_column(blocks),)))
        return new

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> OutputsByClient:
        outputs: dict[int, list[tuple[Request, int, FinishReason | None]]] = {}
        for index, token_id in zip(result.row.tolist(), result.token_ids.tolist(), strict=True):
            row = self._rows.get(index)
            if row is None:  # it was aborted in the meantime
                continue
            row.num_tokens += 1
            reason = self._reason(row, token_id)
            request = row.request
            if reason is not None:
                request.status = RequestStatus.FINISHED
                request.finish_reason = reason
                self._free(index)
            outputs.setdefault(client_of(request.handle), []).append((request, token_id, reason))
        started = {new.handle for new in output.new}
        return {client: _outputs(each, started) for client, each in outputs.items()}

    @staticmethod
    def _reason(row: Row, token_id: int) -> FinishReason | None:
        request = row.request
        num_output = row.num_tokens - request.num_prompt_tokens
        enough = num_output >= request.source.sampling_params.min_tokens
        if enough and token_id in request.source.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if row.num_tokens >= request.max_total_tokens else None

    # ------------------------------------------------------------------ facts
    def has_requests(self) -> bool:
        return bool(self._waiting or self._rows or self._gone)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self._rows), len(self._waiting)

    def make_stats(self) -> SchedulerStats:
        return SchedulerStats(num_running=len(self._rows), num_waiting=len(self._waiting))

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return True  # nothing is cached


def _column(values: list[int]) -> I32:
    return np.array(values, np.int32)


def _outputs(
    ended: list[tuple[Request, int, FinishReason | None]], started: set[int]
) -> EngineCoreOutputs:
    return EngineCoreOutputs(
        handles=np.array([request.handle for request, _, _ in ended], np.uint64),
        token_ids=_column([token_id for _, token_id, _ in ended]),
        scheduled=[
            ScheduledOutput(request.handle, 0.0, 0)
            for request, _, _ in ended
            if request.handle in started
        ],
        finished=[
            FinishedOutput(
                request.handle, reason, token_id if reason is FinishReason.STOP else None
            )
            for request, token_id, reason in ended
            if reason is not None
        ],
    )
