"""The history of one request in sentences, one for each span of steps. Commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tenonry_decisions.reasons import PREEMPTION, Reason, Reasons, Span
from tenonry_decisions.recording import Recording, Stay, Track


class Line(NamedTuple):
    """Event of the steps `start` to `stop` − 1; `start` = `stop`: a moment."""

    start: int
    stop: int
    text: str


def explain(recording: Recording, track: Track, reasons: Reasons | None = None) -> list[Line]:
    """History of the request since its arrival."""
    reasons = reasons or Reasons(recording)
    lines = [Line(track.facts.step, track.facts.step, "arrived")]
    lines += [
        Line(span.start, span.stop, why(recording, reasons, track, span))
        for span in reasons.spans(track)
    ]
    for number, stay in enumerate(track.stays):
        lines += _stay_lines(recording, track, stay, is_first=number == 0)
    lines.sort(key=lambda line: line[:2])
    if track.end is not None:
        lines.append(
            Line(
                track.end,
                track.end,
                f"ended ({track.reason}) with {num_outputs(recording, track)} tokens",
            )
        )
    return lines


def num_outputs(recording: Recording, track: Track) -> int:
    """Tokens that the request sampled within the records."""
    return sum(int(recording.outputs(track, stay).sum()) for stay in track.stays)


def why(recording: Recording, reasons: Reasons, track: Track, span: Span) -> str:
    """One sentence on why the request waited."""
    header = recording.header
    free = int(recording.free_blocks[span.start - recording.first])
    if span.reason is Reason.HELD:
        return f"waited: held by {span.by}"
    if span.reason is Reason.NOT_READY:
        return f"waited: not ready ({span.by})"
    if span.reason is Reason.BUDGET:
        return f"waited: the token budget of {header.token_budget} was used up"
    if span.reason is Reason.ROWS:
        return f"waited: all {header.max_num_seqs} rows were in use"
    if span.reason is Reason.ORDER:
        first = reasons.first_in_queue(span.start)
        cause = "" if first is None else reasons.reason(first, span.start)[0].name.lower()
        return f"waited: request {span.by} was first in the queue and also waiting ({cause})"
    if span.reason is Reason.BLOCKS:
        if span.by == PREEMPTION:
            return "waited: KV blocks ran out, and a running request was preempted"
        needed = reasons.blocks_needed(track, span.start)
        return f"waited: {free} of {header.num_blocks} KV blocks were free, and it needs {needed}"
    room = f"{header.max_num_seqs - int(recording.used_rows[span.start - recording.first])} rows"
    if free >= 0:
        room += f" and {free} KV blocks"
    return f"waited: held by scheduler '{span.by}', although {room} were free"


def _stay_lines(
    recording: Recording, track: Track, stay: Stay, *, is_first: bool
) -> Iterator[Line]:
    stop = recording.stop_of(stay)
    if stay.computed >= 0:
        verb = "started" if is_first else "resumed"
        yield Line(
            stay.start,
            stay.start,
            f"{verb} in row {stay.row}; {stay.computed} of {stay.length} tokens had K/V",
        )
    tokens = recording.tokens(stay)
    outputs = recording.outputs(track, stay)
    ran = np.flatnonzero(tokens)
    samples = np.flatnonzero(outputs)
    first_sample = int(samples[0]) if len(samples) else len(tokens)
    prefill = ran[ran <= first_sample]
    if len(prefill) and stay.computed >= 0:
        last = int(prefill[-1])
        yield Line(
            stay.start,
            stay.start + last + 1,
            f"computed {int(tokens[prefill].sum())} tokens in {_steps(len(prefill))}",
        )
    decodes = ran[ran > first_sample] if stay.computed >= 0 else ran
    if len(decodes):
        start = stay.start + int(decodes[0])
        got = int(outputs[decodes].sum())
        idle = int(decodes[-1]) + 1 - int(decodes[0]) - len(decodes)
        missed = f", and not at all in {_steps(idle)}" if idle else ""
        yield Line(start, stay.start + int(decodes[-1]) + 1, f"decoded {got} tokens{missed}")
    if stay.is_preempted:
        yield Line(stop, stop, "preempted: lost its row and its KV blocks")


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number} steps"


def describe(recording: Recording, track: Track) -> str:
    """The history for a person."""
    header, facts = recording.header, track.facts
    policy = f", policy '{header.policy}'" if header.policy else ""
    title = (
        f"request {track.label}: {facts.num_prompt} prompt tokens, at most {facts.max_total} in all; "
        f"engine {header.engine}, scheduler '{header.scheduler}' ({header.origin}){policy}, {header.source}"
    )
    lines = [title]
    for line in explain(recording, track):
        last = max(line.start, line.stop - 1)
        name = f"step {line.start}" if last == line.start else f"steps {line.start}–{last}"
        lines.append(f"  {name:<18} {line.text}{_duration(recording, line)}")
    return "\n".join(lines)


def _duration(recording: Recording, line: Line) -> str:
    """Seconds that a span took, up to the step that follows."""
    if line.stop <= line.start:
        return ""
    start = line.start - recording.first
    stop = min(line.stop - recording.first, len(recording.time) - 1)
    return f" ({recording.time[stop] - recording.time[start]:.3f} s)" if stop > start else ""
