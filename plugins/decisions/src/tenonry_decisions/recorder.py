"""Observer that records the decisions of a scheduler. Engine process, every step.

A step costs one packed record; its arrays are kept until the next chunk only where a row computes several tokens.
Further work in Python happens only for requests that arrive, get or lose a row, end, or are held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import Scheduler
from tenonry.messages import OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.step import I32, SchedulerOutput
from tenonry_decisions.frames import CHUNK_STEPS, TABLES, UNKNOWN, Chunk, Header

MAX_WAIT_S = 1.0  # until steps are written, while requests are live
GRAMMAR = "grammar"
KV_TRANSFER = "KV transfer"
ROW_BYTES = 4  # i32

Sink = Callable[[Chunk], None]
_PLAIN = (int, float, str)
_request_record = TABLES["requests"].record
_step_record = TABLES["steps"].record
_start_record = TABLES["starts"].record
_end_record = TABLES["ends"].record


class Recorder:
    """Makes chunks of the steps of `scheduler` and passes them to the sinks."""

    def __init__(self, header: Header, scheduler: Scheduler, sinks: Sequence[Sink]) -> None:
        self.name = f"the decision record of scheduler '{header.scheduler}' ({header.source})"
        self.header = header
        context = scheduler.context
        self._clock = context.clock
        # Requests that load K/V are found by their status.
        self.is_immediate = context.kv_connector is not None
        self._sinks = sinks
        self._live: dict[int, Request] = {}
        self._first_step = 0
        self._written = self._clock()
        self._begin()

    def _begin(self) -> None:
        self._num_steps = 0
        self._row_sets: dict[bytes, int] = {}  # rows that computed together; they change seldom
        self._rows: I32 | None = None  # of the latest step, if nobody can write into them
        self._set = 0
        self._requests = bytearray()
        self._request_ids: list[str] = []
        self._keys: list[Any] = []
        self._steps = bytearray()
        self._other: list[tuple[int, I32, I32]] = []
        self._starts = bytearray()
        self._gone = bytearray()
        self._got = bytearray()
        self._ends = bytearray()
        self._held = bytearray()
        self._held_by: list[str] = []
        self._pending = bytearray()
        self._pending_for: list[str] = []

    # ------------------------------------------------------------------ the observer
    def added(self, request: Request, now: float, key: object) -> None:
        source = request.source
        self._live[source.handle] = request
        self._requests += _request_record(
            source.handle,
            self._first_step + self._num_steps,
            now,
            request.num_prompt_tokens,
            len(source.output_token_ids),
            request.max_total_tokens,
            source.priority,
        )
        self._request_ids.append(source.request_id)
        self._keys.append(_plain_key(key))

    def scheduled(
        self, output: SchedulerOutput, now: float, free_blocks: int, held: dict[int, str]
    ) -> None:
        rows, total = output.row, output.total_tokens
        if rows is not self._rows:
            self._set = self._row_sets.setdefault(rows.tobytes(), len(self._row_sets))
            self._rows = None if rows.flags.writeable else rows
        if total != len(rows):
            self._other.append((self._num_steps, rows, output.num_tokens))
        if output.new or len(output.gone):
            self._note_rows(output)
        self._steps += _step_record(self._set, now, total, output.round_tokens, free_blocks)
        if held:
            self._held += self._with_step("held", held)
            self._held_by += held.values()
        if output.prepare:
            self._note_pending(output.prepare, GRAMMAR)
        if self.is_immediate:
            self._note_transfers()
        self._num_steps += 1
        if self._num_steps == CHUNK_STEPS or now - self._written > MAX_WAIT_S:
            self.flush()

    def updated(self, outputs_by_client: OutputsByClient) -> None:
        for outputs in outputs_by_client.values():
            if len(outputs.offsets):
                self._got += TABLES["got"].records(
                    len(outputs.handles),
                    step=self._num_steps - 1,
                    handle=outputs.handles,
                    tokens=np.diff(outputs.offsets),
                )
            if outputs.finished:
                self._end((each.handle, each.reason) for each in outputs.finished)

    def ended(self, requests: list[Request], reason: FinishReason) -> None:
        self._end((each.handle, reason) for each in requests)

    def shutdown(self) -> None:
        self.flush()

    # ------------------------------------------------------------------ notes
    def _end(self, ends: Iterable[tuple[int, FinishReason]]) -> None:
        """Note the ends of requests, and flush after that of the last live one: an idle engine has no later step.

        A step without requests, which only gives up rows, waits for the next chunk.
        """
        for handle, reason in ends:
            request = self._live.pop(handle, None)
            length = UNKNOWN
            if request is not None:
                length = request.num_prompt_tokens + request.num_output_tokens
            self._ends += _end_record(self._num_steps, handle, reason, length)
        if not self._live:
            self.flush()

    def _note_rows(self, output: SchedulerOutput) -> None:
        """Note rows that were taken and given up."""
        step, gone = self._num_steps, output.gone
        if len(gone):
            self._gone += TABLES["gone"].records(len(gone), step=step, row=gone)
        for new in output.new:
            self._starts += _start_record(
                step, new.row, new.handle, new.num_computed, len(new.token_ids)
            )

    def _note_transfers(self) -> None:
        loading = [
            handle
            for handle, request in self._live.items()
            if request.status == RequestStatus.WAITING_FOR_KV
        ]
        self._note_pending(loading, KV_TRANSFER)

    def _note_pending(self, handles: Collection[int], what: str) -> None:
        self._pending += self._with_step("pending", handles)
        self._pending_for += [what] * len(handles)

    def _with_step(self, kind: str, handles: Collection[int]) -> bytes:
        step = self._num_steps
        return TABLES[kind].records(len(handles), step=step, handle=[*handles])

    # ------------------------------------------------------------------ chunks
    def flush(self) -> None:
        """Pass on what was recorded since the last time."""
        if not (self._num_steps or self._requests or self._ends):
            return
        chunk = self._chunk()
        self._first_step += self._num_steps
        self._begin()
        self._written = self._clock()
        for sink in self._sinks:
            sink(chunk)

    def _chunk(self) -> Chunk:
        return Chunk(
            run=self.header.run,
            source=self.header.source,
            first_step=self._first_step,
            num_steps=self._num_steps,
            requests=bytes(self._requests),
            request_ids=self._request_ids,
            keys=self._keys,
            ran=self._sets_as_bits().tobytes(),
            steps=bytes(self._steps),
            other=self._other_counts(),
            starts=bytes(self._starts),
            gone=bytes(self._gone),
            got=bytes(self._got),
            ends=bytes(self._ends),
            held=bytes(self._held),
            held_by=self._held_by,
            pending=bytes(self._pending),
            pending_for=self._pending_for,
        )

    def _sets_as_bits(self) -> np.ndarray:
        """The sets of rows, a bit per row."""
        ran = np.zeros((len(self._row_sets), self.header.max_num_seqs), np.bool_)
        sizes = [len(rows) // ROW_BYTES for rows in self._row_sets]
        ran[
            np.repeat(np.arange(len(sizes)), sizes),
            np.frombuffer(b"".join(self._row_sets), np.int32),
        ] = True
        return np.packbits(ran, axis=1)

    def _other_counts(self) -> bytes:
        """Rows that computed another number of tokens than one."""
        if not self._other:
            return b""
        steps, rows, counts = zip(*self._other, strict=True)
        num_tokens = np.concatenate(counts)
        other = np.flatnonzero(num_tokens != 1)
        return TABLES["other"].records(
            len(other),
            step=np.repeat(steps, [len(each) for each in rows])[other],
            row=np.concatenate(rows)[other],
            tokens=num_tokens[other],
        )


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
