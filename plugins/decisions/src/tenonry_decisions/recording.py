"""The records of one run, put together: steps as columns, requests with their stays in rows. Commands.

A *stay* is the time that a request spends in a row. Steps count from the engine's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenonry.outputs import FinishReason
from tenonry_decisions.frames import (
    LIVE,
    Chunk,
    Header,
    RequestFacts,
    facts_of,
    runs,
    table,
    unpack,
)


@dataclass
class Stay:
    """`computed` of `length` tokens had K/V at the start (−1: the records begin later). `stop`: the step in which it no
    longer ran, None while it does.
    """

    row: int
    start: int
    computed: int
    length: int
    stop: int | None = None
    is_preempted: bool = False


@dataclass
class Track:
    """A request through the steps. `end`: the step before which it ended, with `length` tokens (−1: unknown)."""

    facts: RequestFacts
    stays: list[Stay] = field(default_factory=list)
    end: int | None = None
    reason: FinishReason | None = None
    length: int = -1

    @property
    def label(self) -> str:
        return self.facts.request_id or str(self.facts.handle)

    @property
    def order(self) -> tuple[int, ...]:
        return (self.facts.step, self.facts.handle)


class Recording:
    """Columns over the steps `first` to `stop`: `time`, `total_tokens`, `round_tokens`; `free_blocks` and `used_rows`
    after each step; and `preempted`, the number of requests that lost their row to it. `tracks`: requests in order of
    arrival. `held` and `pending`: by (step, handle), the plugin that held it, and what was not ready.
    """

    def __init__(self, header: Header, chunks: Sequence[Chunk]) -> None:
        self.header = header
        self._chunks = chunks
        self.first = chunks[0].first_step if chunks else 0
        self.stop = self.first + sum(chunk.num_steps for chunk in chunks)
        for place, chunk in enumerate(chunks):
            if place and chunk.first_step != _stop(chunks[place - 1]):
                raise ValueError(f"steps before step {chunk.first_step} are missing")
        self.time = self._whole("time")
        self.total_tokens = self._whole("total_tokens")
        self.round_tokens = self._whole("round_tokens")
        self.free_blocks = self._whole("free_blocks")
        self.used_rows = np.zeros(self.stop - self.first, np.int32)
        self.preempted = np.zeros(self.stop - self.first, np.int32)
        self.tracks: list[Track] = []
        self.held: dict[tuple[int, int], str] = {}
        self.pending: dict[tuple[int, int], str] = {}
        self._got: dict[tuple[int, int], int] = {}
        self._current: dict[int, Track] = {}
        self._in_row: dict[int, Track] = {}
        for chunk in chunks:
            self._read(chunk)
        self.tracks.sort(key=lambda track: track.order)

    @property
    def began_at(self) -> float:
        """Unix time of the first step; that of the engine's start without a step."""
        header = self.header
        return header.started_at + (self.time[0] - header.clock if len(self.time) else 0.0)

    def _whole(self, name: str) -> np.ndarray:
        parts = [table(chunk, "steps")[name] for chunk in self._chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    # ------------------------------------------------------------------ reading
    def _read(self, chunk: Chunk) -> None:
        for facts in facts_of(chunk):
            track = self._current[facts.handle] = Track(facts)
            self.tracks.append(track)
        if chunk.first_step == self.first:
            self._enter_first(chunk)
        events: list[tuple[int, int, tuple[int, ...]]] = []
        for kind, name in enumerate(("ends", "gone", "starts")):
            events += [(each[0], kind, each) for each in table(chunk, name).tolist()]
        events.sort(key=lambda event: event[:2])
        self.used_rows[chunk.first_step - self.first :] = len(self._in_row)
        for step, kind, values in events:
            now = chunk.first_step + step
            (self._end, self._leave, self._start)[kind](now, *values[1:])
            if now < self.stop:
                self.used_rows[now - self.first :] = len(self._in_row)
        self._read_notes(chunk)

    def _enter_first(self, chunk: Chunk) -> None:
        handle_of_row = np.frombuffer(chunk.handle_of_row, "<u8")
        for row in np.flatnonzero(handle_of_row).tolist():
            if track := self._current.get(int(handle_of_row[row])):
                track.stays.append(Stay(row, self.first, -1, -1))
                self._in_row[row] = track

    def _read_notes(self, chunk: Chunk) -> None:
        first = chunk.first_step
        for found, kind, texts in (
            (self.held, "held", chunk.held_by),
            (self.pending, "pending", chunk.pending_for),
        ):
            for (step, handle), text in zip(table(chunk, kind).tolist(), texts, strict=True):
                found[first + step, handle] = text
        for step, handle, tokens in table(chunk, "got").tolist():
            self._got[first + step, handle] = tokens

    def _start(self, step: int, row: int, handle: int, computed: int, length: int) -> None:
        if track := self._current.get(handle):
            track.stays.append(Stay(row, step, computed, length))
            self._in_row[row] = track

    def _leave(self, step: int, row: int) -> None:
        track = self._in_row.pop(row, None)
        if track is not None and track.stays[-1].stop is None:
            track.stays[-1].stop = step
            track.stays[-1].is_preempted = True
            self.preempted[step - self.first] += 1

    def _end(self, step: int, handle: int, reason: int, length: int) -> None:
        track = self._current.pop(handle, None)
        if track is None:
            return
        track.end, track.reason, track.length = step, FinishReason(reason), length
        if track.stays and track.stays[-1].stop is None:
            track.stays[-1].stop = step

    # ------------------------------------------------------------------ looking
    def stop_of(self, stay: Stay) -> int:
        """The step in which a stay no longer ran, or the end of the records."""
        return self.stop if stay.stop is None else stay.stop

    def tokens(self, stay: Stay) -> np.ndarray:
        """Tokens computed in each step of a stay, i32[steps]; 0 where the row did not run."""
        start, stop = stay.start, self.stop_of(stay)
        found = np.zeros(max(0, stop - start), np.int32)
        for chunk in self._chunks:
            first, last = max(start, chunk.first_step), min(stop, _stop(chunk))
            if first >= last:
                continue
            bits = np.frombuffer(chunk.ran, np.uint8)
            sets = np.unpackbits(bits.reshape(-1, -(-self.header.max_num_seqs // 8)), axis=1)
            inside = slice(first - chunk.first_step, last - chunk.first_step)
            found[first - start : last - start] = sets[
                table(chunk, "steps")["set"][inside], stay.row
            ]
            other = table(chunk, "other")
            step = other["step"] + chunk.first_step
            mine = (other["row"] == stay.row) & (step >= first) & (step < last)
            found[step[mine] - start] = other["tokens"][mine]
        return found

    def outputs(self, track: Track, stay: Stay) -> np.ndarray:
        """Tokens sampled in each step of a stay, i32[steps]."""
        tokens = self.tokens(stay)
        if stay.computed < 0:
            sampled = np.where(
                tokens == 1, 1, 0
            )  # a prompt that began before the records may end in one
        else:
            sampled = ((stay.computed + np.cumsum(tokens) >= stay.length) & (tokens > 0)).astype(
                np.int32
            )
        for step in np.flatnonzero(sampled).tolist():
            got = self._got.get((stay.start + step, track.facts.handle))
            if got is not None:
                sampled[step] = got
        if stay.computed >= 0 and stay is track.stays[-1] and stay.length < track.length:
            # Steps in flight at the end of a request sample tokens that are dropped.
            before = np.cumsum(sampled) - sampled
            sampled = np.clip(track.length - stay.length - before, 0, sampled)
        return sampled

    def find(self, name: str) -> Track:
        """The latest request with this id, handle or unique part of an id. Raises LookupError."""
        exact = [
            track
            for track in self.tracks
            if name in (track.facts.request_id, str(track.facts.handle))
        ]
        if exact:
            return exact[-1]
        near = [track for track in self.tracks if name in track.facts.request_id]
        if len(near) == 1:
            return near[0]
        some = ", ".join(track.label for track in (near or self.tracks)[-5:]) or "none"
        what = f"is part of {len(near)} ids" if near else "is not in the records"
        raise LookupError(f"request '{name}' {what}; the latest: {some}")


def _stop(chunk: Chunk) -> int:
    return chunk.first_step + chunk.num_steps


def recordings(parts: Iterable[bytes], source: str = LIVE) -> list[Recording]:
    """The runs of some files or messages, in their order. Raises ValueError for other data."""
    return [
        Recording(header, chunks)
        for data in parts
        for header, chunks in runs(unpack(data))
        if header.source == source
    ]
