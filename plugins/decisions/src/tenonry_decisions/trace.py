"""Records as a Chrome trace, which Perfetto opens. Commands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from tenonry_decisions.reasons import Reasons
from tenonry_decisions.recording import Recording, Track
from tenonry_decisions.segments import segments

MICROSECONDS = 1e6


def trace(recording: Recording, tracks: Iterable[Track] | None = None) -> bytes:
    """JSON in the trace event format: a thread for each request, counters for the engine; time is that of the clock."""
    chosen = list(recording.tracks if tracks is None else tracks)
    events = [*_names(recording, chosen), *_requests(recording, chosen), *_counters(recording)]
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _names(recording: Recording, tracks: list[Track]) -> Iterator[dict[str, Any]]:
    header = recording.header
    process = f"engine {header.engine}: {header.scheduler} ({header.source})"
    yield {"ph": "M", "name": "process_name", "pid": header.engine, "args": {"name": process}}
    for place, track in enumerate(tracks):
        name = {"name": track.label}
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": header.engine,
            "tid": place + 1,
            "args": name,
        }


def _requests(recording: Recording, tracks: list[Track]) -> Iterator[dict[str, Any]]:
    reasons, engine = Reasons(recording), recording.header.engine
    for place, track in enumerate(tracks):
        for segment in segments(recording, reasons, track):
            start, stop = _at(recording, segment.start), _at(recording, segment.stop)
            steps = {"steps": f"{segment.start}–{segment.stop - 1}", "text": segment.text}
            common = {"pid": engine, "tid": place + 1}
            yield {
                "ph": "X",
                "name": segment.kind,
                "ts": start,
                "dur": stop - start,
                "args": steps,
                **common,
            }
            if segment.ends_in_preemption:
                yield {"ph": "i", "name": "preempted", "s": "t", "ts": stop, **common}


def _counters(recording: Recording) -> Iterator[dict[str, Any]]:
    columns = {
        "tokens": recording.total_tokens,
        "rows in use": recording.used_rows,
        "free KV blocks": recording.free_blocks,
    }
    for name, values in columns.items():
        for place, value in enumerate(values.tolist()):
            at = _at(recording, recording.first + place)
            yield {
                "ph": "C",
                "name": name,
                "pid": recording.header.engine,
                "ts": at,
                "args": {name: value},
            }


def _at(recording: Recording, step: int) -> float:
    """Microseconds from the first step to the beginning of a step."""
    time = recording.time
    if not len(time):
        return 0.0
    place = min(max(0, step - recording.first), len(time) - 1)
    return float((time[place] - time[0]) * MICROSECONDS)
