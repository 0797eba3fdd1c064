"""Observer that records the decisions of a scheduler. Engine process, every step.

A step costs a few appended numbers and the bytes of its rows, and is not kept: the memory of its arrays is used again
while it is in the processor's cache. Further work in Python happens only for requests that arrive, get or lose a row,
end, or are held. Columns are made of many steps together, in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import Scheduler
from tenonry.messages import OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.step import SchedulerOutput
from tenonry_decisions.frames import CHUNK_STEPS, UNKNOWN, Chunk, Header, RequestFacts, to_bytes

MAX_WAIT_S = 1.0  # until steps are written, while requests are live
GRAMMAR = "grammar"
KV_TRANSFER = "KV transfer"

Sink = Callable[[Chunk], None]
_PLAIN = (int, float, str)


class Recorder:
    """Makes chunks of the steps of `scheduler` and passes them to the sinks.

    Schedulers that delay requests may name the plugin in `held`, by handle, of the latest step.
    """

    def __init__(self, header: Header, scheduler: Scheduler, sinks: Sequence[Sink]) -> None:
        self.name = f"the decision record of scheduler '{header.scheduler}' ({header.source})"
        self.header = header
        self._scheduler = scheduler
        self._blocks = getattr(scheduler, "blocks", None)
        context = scheduler.context
        self._clock = context.clock
        self._loads_kv = context.kv_connector is not None
        self._sinks = sinks
        self._handle_of_row = np.zeros(header.max_num_seqs, np.uint64)
        self._live: dict[int, Request] = {}
        self._first_step = 0
        self._written = self._clock()
        self._begin()

    def _begin(self) -> None:
        self._handles_before = self._handle_of_row.copy()
        self._steps: list[tuple[int, float, int, int, int]] = []
        self._row_sets: dict[
            bytes, int
        ] = {}  # the sets of rows that computed, by their ids: they change seldom
        self._starts: list[tuple[int, ...]] = []
        self._gone: list[tuple[int, ...]] = []
        self._other: list[tuple[int, ...]] = []
        self._got: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._requests: list[RequestFacts] = []
        self._ends: list[tuple[int, int, int, int]] = []
        self._held: list[tuple[int, int, str]] = []
        self._pending: list[tuple[int, int, str]] = []

    # ------------------------------------------------------------------ the observer
    def added(self, request: Request) -> None:
        self._live[request.handle] = request
        self._requests.append(
            RequestFacts(
                request.handle,
                request.request_id,
                self._first_step + len(self._steps),
                self._clock(),
                request.num_prompt_tokens,
                request.num_output_tokens,
                request.max_total_tokens,
                request.priority,
                _plain_key(request.key),
            )
        )

    def scheduled(self, output: SchedulerOutput) -> None:
        now = self._clock()
        steps = self._steps
        total, sets = output.total_tokens, self._row_sets
        place = sets.setdefault(output.row.tobytes(), len(sets))
        free = getattr(self._blocks, "num_free", UNKNOWN)
        if total != len(output.row):
            self._note_counts(output)
        if output.new or len(output.gone):
            self._note_rows(output)
        steps.append((place, now, total, output.round_tokens, free))
        if held := getattr(self._scheduler, "held", None):
            self._held += [(len(steps) - 1, handle, by) for handle, by in held.items()]
        if output.prepare:
            self._pending += [(len(steps) - 1, handle, GRAMMAR) for handle in output.prepare]
        if self._loads_kv:
            self._note_transfers()
        if len(steps) == CHUNK_STEPS or now - self._written > MAX_WAIT_S:
            self.flush()

    def updated(self, outputs_by_client: OutputsByClient) -> None:
        for outputs in outputs_by_client.values():
            if len(outputs.offsets):
                self._got.append((len(self._steps) - 1, outputs.handles, np.diff(outputs.offsets)))
            for finished in outputs.finished:
                self._end(finished.handle, finished.reason)
        self._flush_if_idle()

    def ended(self, requests: list[Request], reason: FinishReason) -> None:
        for request in requests:
            self._end(request.handle, reason)
        self._flush_if_idle()

    def shutdown(self) -> None:
        self.flush()

    def _flush_if_idle(self) -> None:
        """Flush after the last live request: an idle engine has no later step that would do it.

        A step without requests, which only gives up rows, waits for the next chunk.
        """
        if not self._live and (self._ends or self._requests):
            self.flush()

    def _end(self, handle: int, reason: FinishReason) -> None:
        request = self._live.pop(handle, None)
        length = UNKNOWN
        if request is not None:
            length = request.num_prompt_tokens + request.num_output_tokens
        self._ends.append((len(self._steps), handle, int(reason), length))

    def _note_transfers(self) -> None:
        self._pending += [
            (len(self._steps) - 1, handle, KV_TRANSFER)
            for handle, request in self._live.items()
            if request.status == RequestStatus.WAITING_FOR_KV
        ]

    # ------------------------------------------------------------------ chunks
    def flush(self) -> None:
        """Pass on what was recorded since the last time."""
        if not (self._steps or self._requests or self._ends):
            return
        chunk = self._chunk()
        self._first_step += len(self._steps)
        self._begin()
        self._written = self._clock()
        for sink in self._sinks:
            sink(chunk)

    def _chunk(self) -> Chunk:
        steps = self._steps
        columns: dict[str, Any] = {
            "handle_of_row": self._handles_before,
            "ran": self._sets_as_bits(),
            "got_step": np.repeat(
                [step for step, _, _ in self._got], [len(each) for _, each, _ in self._got]
            ),
            "got_handle": _joined([handles for _, handles, _ in self._got]),
            "got_tokens": _joined([counts for _, _, counts in self._got]),
        }
        _transpose(columns, steps, "ran_set time total_tokens round_tokens free_blocks")
        _transpose(columns, self._other, "other_step other_row other_tokens")
        _transpose(
            columns, self._starts, "start_step start_row start_handle start_computed start_length"
        )
        _transpose(columns, self._gone, "gone_step gone_row")
        _transpose(columns, self._ends, "end_step end_handle end_reason end_length")
        _transpose(columns, [each[:2] for each in self._held], "held_step held_handle")
        _transpose(columns, [each[:2] for each in self._pending], "pending_step pending_handle")
        return Chunk(
            run=self.header.run,
            source=self.header.source,
            first_step=self._first_step,
            num_steps=len(steps),
            requests=self._requests,
            held_by=[by for _, _, by in self._held],
            pending_for=[what for _, _, what in self._pending],
            **{name: to_bytes(name, values) for name, values in columns.items()},
        )

    def _note_rows(self, output: SchedulerOutput) -> None:
        """Note rows that were taken and given up, with the step that is recorded."""
        step = len(self._steps)
        if len(output.gone):
            self._gone += [(step, row) for row in output.gone.tolist()]
            self._handle_of_row[output.gone] = 0
        for new in output.new:
            self._starts.append((step, new.row, new.handle, new.num_computed, len(new.token_ids)))
            self._handle_of_row[new.row] = new.handle

    def _note_counts(self, output: SchedulerOutput) -> None:
        """Note step, row and tokens, of rows that compute another number of tokens than one."""
        step = len(self._steps)
        other = np.flatnonzero(output.num_tokens != 1)
        rows, counts = output.row[other].tolist(), output.num_tokens[other].tolist()
        self._other += [(step, row, count) for row, count in zip(rows, counts, strict=True)]

    def _sets_as_bits(self) -> np.ndarray:
        """The sets of rows, a bit per row."""
        ran = np.zeros((len(self._row_sets), len(self._handle_of_row)), np.bool_)
        for rows, place in self._row_sets.items():
            ran[place, np.frombuffer(rows, np.int32)] = True
        return np.packbits(ran, axis=1)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32)


def _transpose(columns: dict[str, Any], rows: Sequence[tuple[int, ...]], names: str) -> None:
    """Add one column for each name."""
    found = zip(*rows, strict=True) if rows else [()] * len(names.split())
    columns.update(zip(names.split(), found, strict=True))


def _plain_key(key: object) -> Any:
    """The key if it can be written and compared by a reader, else None."""
    if isinstance(key, _PLAIN):
        return key
    if not isinstance(key, tuple):
        return None
    for each in key:  # no generator: a record of every request comes by
        if not isinstance(each, _PLAIN):
            return None
    return key
