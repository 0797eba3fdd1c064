"""Reasons for which a request did not run in a step, derived from the records. Commands.

Each step of a waiting request has exactly one reason: the first that applies, in the order of `Reason`.
"""

from __future__ import annotations

import enum
import heapq
from functools import cached_property
from typing import NamedTuple

from tenonry.kv_cache import paged
from tenonry_decisions.recording import Recording, Track

PREEMPTION = "preemption"


class Reason(enum.IntEnum):
    """HELD: a plugin held it back. NOT_READY: its grammar or K/V. BUDGET: no tokens left in the step. ROWS: all rows in
    use. BLOCKS: too few KV blocks. ORDER: another one comes first. SCHEDULER: room was left, and the scheduler started
    nothing.
    """

    HELD = 0
    NOT_READY = 1
    BUDGET = 2
    ROWS = 3
    BLOCKS = 4
    ORDER = 5
    SCHEDULER = 6


class Span(NamedTuple):
    """Consecutive steps with one reason. `by`: the plugin that held it, what was not ready, or the first request."""

    start: int
    stop: int
    reason: Reason
    by: str = ""


class Reasons:
    """Reasons of the waiting requests of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._groups = max(1, len(paged(recording.header.groups)))

    def waits(self, track: Track) -> list[tuple[int, int]]:
        """Intervals of steps in which the request had no row."""
        recording = self._recording
        found, since = [], max(track.facts.step, recording.first)
        for stay in track.stays:
            found.append((since, stay.start))
            since = recording.stop_of(stay)
        found.append((since, recording.stop if track.end is None else track.end))
        return [(start, stop) for start, stop in found if start < stop]

    def spans(self, track: Track) -> list[Span]:
        """All steps in which the request waited."""
        found: list[Span] = []
        for start, stop in self.waits(track):
            for step in range(start, stop):
                reason, by = self.reason(track, step)
                last = found[-1] if found else None
                if last and (last.stop, last.reason, last.by) == (step, reason, by):
                    found[-1] = last._replace(stop=step + 1)
                else:
                    found.append(Span(step, step + 1, reason, by))
        return found

    def reason(self, track: Track, step: int) -> tuple[Reason, str]:
        """The reason why the request did not run in a step, and by whom."""
        recording, header = self._recording, self._recording.header
        place, key = step - recording.first, (step, track.facts.handle)
        if by := recording.held.get(key):
            return Reason.HELD, by
        if by := recording.pending.get(key):
            return Reason.NOT_READY, by
        if recording.total_tokens[place] >= header.token_budget:
            return Reason.BUDGET, ""
        if recording.used_rows[place] >= header.max_num_seqs:
            return Reason.ROWS, ""
        if recording.preempted[place]:
            return Reason.BLOCKS, PREEMPTION
        first = self.first_in_queue(step)
        if first is not None and first is not track:
            return Reason.ORDER, first.label
        if 0 <= recording.free_blocks[place] < self.blocks_needed(track, step):
            return Reason.BLOCKS, ""
        return Reason.SCHEDULER, header.scheduler

    def blocks_needed(self, track: Track, step: int) -> int:
        """Blocks for the tokens that a waiting request has, without a prefix in the cache."""
        length = track.facts.num_prompt + track.facts.num_delivered
        for stay in track.stays:
            if self._recording.stop_of(stay) <= step and stay.length >= 0:
                length = stay.length + int(self._recording.outputs(track, stay).sum())
        return -(-length // self._recording.header.block_size) * self._groups

    def first_in_queue(self, step: int) -> Track | None:
        """The request that is first in the queue after a step."""
        return self._first_of.get(step)

    @cached_property
    def _first_of(self) -> dict[int, Track]:
        """The first request of the queue after each step, by the scheduler's keys if it sets them, else by arrival."""
        tracks = self._recording.tracks
        places = {id(track): place for place, track in enumerate(self._in_order(tracks))}
        begins = sorted(
            (start, stop, places[id(track)], track)
            for track in tracks
            for start, stop in self.waits(track)
        )
        found: dict[int, Track] = {}
        queue: list[tuple[int, int, Track]] = []
        taken = 0
        for step in range(self._recording.first, self._recording.stop):
            while taken < len(begins) and begins[taken][0] <= step:
                _, stop, place, track = begins[taken]
                heapq.heappush(queue, (place, stop, track))
                taken += 1
            while queue and queue[0][1] <= step:
                heapq.heappop(queue)
            if queue:
                found[step] = queue[0][2]
        return found

    @staticmethod
    def _in_order(tracks: list[Track]) -> list[Track]:
        if all(track.facts.key is not None for track in tracks):
            try:
                return sorted(tracks, key=lambda track: (track.facts.key, track.order))
            except TypeError:  # keys of several types
                pass
        return tracks
