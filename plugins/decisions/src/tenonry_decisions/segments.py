"""The life of a request in segments, for drawings and traces. Commands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tenonry_decisions.explain import why
from tenonry_decisions.reasons import Reason, Reasons
from tenonry_decisions.recording import Recording, Stay, Track

PREFILL, DECODE, IDLE = "prefill", "decode", "idle"
WAITS = {reason: reason.name.lower().replace("_", " ") for reason in Reason}


class Segment(NamedTuple):
    """Steps `start` until before `stop`. `kind`: PREFILL, DECODE, IDLE (it has a row, and the step left it out), or one
    of `WAITS`. `ends_in_preemption`: it loses its row then.
    """

    start: int
    stop: int
    kind: str
    text: str
    ends_in_preemption: bool = False


def segments(recording: Recording, reasons: Reasons, track: Track) -> list[Segment]:
    """All segments of a request, in order."""
    found = [
        Segment(span.start, span.stop, WAITS[span.reason], why(recording, reasons, track, span))
        for span in reasons.spans(track)
    ]
    for stay in track.stays:
        found += _of_stay(recording, track, stay)
    return sorted(found)


def _of_stay(recording: Recording, track: Track, stay: Stay) -> Iterator[Segment]:
    tokens = recording.tokens(stay)
    if not len(tokens):
        return
    sampled = np.cumsum(recording.outputs(track, stay))
    # A step in which the first token is sampled still computes the prompt.
    is_decode = np.concatenate(([0], sampled[:-1])) > 0
    kind = np.where(tokens == 0, 0, np.where(is_decode, 2, 1))
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    for start, stop in itertools.pairwise(edges):
        name = (IDLE, PREFILL, DECODE)[kind[start]]
        count = int(tokens[start:stop].sum())
        text = "has a row, and the step left it out" if name == IDLE else f"{name}: {count} tokens"
        yield Segment(
            stay.start + start,
            stay.start + stop,
            name,
            f"{text} (row {stay.row})",
            stay.is_preempted and stop == len(kind),
        )
