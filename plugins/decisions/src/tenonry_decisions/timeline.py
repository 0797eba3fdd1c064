"""Timelines of records: an SVG drawing, and a page that holds it. Commands.

One file without scripts and without anything from elsewhere; every text of a request is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tenonry_decisions.explain import describe
from tenonry_decisions.reasons import Reason, Reasons
from tenonry_decisions.recording import Recording, Track
from tenonry_decisions.segments import DECODE, IDLE, PREFILL, WAITS, Segment, segments

LEFT, TOP, ROW, BAR = 130, 76, 20, 14  # pixels
WIDTH = 1000  # of the steps
STRIP = 40  # height of the tokens of each step
LABEL_CHARS = 18
COLOURS = {
    PREFILL: "#0a4fb3",
    DECODE: "#59a14f",
    IDLE: "#bab0ac",
    WAITS[Reason.ROWS]: "#ffbe7d",
    WAITS[Reason.BUDGET]: "#f2cf5b",
    WAITS[Reason.BLOCKS]: "#e15759",
    WAITS[Reason.ORDER]: "#ffd8b5",
    WAITS[Reason.HELD]: "#b07aa1",
    WAITS[Reason.NOT_READY]: "#76b7b2",
    WAITS[Reason.SCHEDULER]: "#9c755f",
}
LABELS = {
    PREFILL: "prefill",
    DECODE: "decode",
    IDLE: "has a row, left out",
    WAITS[Reason.ROWS]: "waits: rows",
    WAITS[Reason.BUDGET]: "waits: token budget",
    WAITS[Reason.BLOCKS]: "waits: KV blocks",
    WAITS[Reason.ORDER]: "waits: order",
    WAITS[Reason.HELD]: "waits: held by a plugin",
    WAITS[Reason.NOT_READY]: "waits: not ready",
    WAITS[Reason.SCHEDULER]: "waits: scheduler",
}
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.title{font-size:15px;font-weight:600}"
    ".name{text-anchor:end}.axis{fill:#57606a;text-anchor:middle}"
)


def draw(recording: Recording, tracks: Iterable[Track] | None = None) -> str:
    """The drawing as SVG: a line for each request, steps from left to right, tokens of each step below."""
    reasons = Reasons(recording)
    tracks = list(recording.tracks if tracks is None else tracks)
    lines = [segments(recording, reasons, track) for track in tracks]
    used = {segment.kind for line in lines for segment in line}
    scale = WIDTH / max(1, recording.stop - recording.first)
    bottom = TOP + ROW * len(tracks)
    height = bottom + STRIP + 40
    header = recording.header
    policy = f", policy {header.policy}" if header.policy else ""
    title = (
        f"scheduler {header.scheduler}{policy} ({header.source}): {header.max_num_seqs} rows, "
        f"{header.token_budget} tokens a step, {header.num_blocks} KV blocks of {header.block_size}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" role="img">',
        f"<style>{STYLE}</style>",
        f'<rect width="{LEFT + WIDTH + 30}" height="{height}" fill="#fff"/>',
        f'<text class="title" x="10" y="22">{escape(title)}</text>',
        *_legend([kind for kind in COLOURS if kind in used]),
    ]
    for place, (track, line) in enumerate(zip(tracks, lines, strict=True)):
        y = TOP + ROW * place
        name = escape(track.label[-LABEL_CHARS:])
        parts.append(f'<text class="name" x="{LEFT - 8}" y="{y + 12}">{name}</text>')
        parts += [_bar(recording, scale, y, track, segment) for segment in line]
        lost = [segment for segment in line if segment.ends_in_preemption]
        parts += [_mark(recording, scale, y, segment) for segment in lost]
    parts += _tokens(recording, scale, bottom + 8)
    parts += _axis(recording, scale, bottom + STRIP + 24)
    return "\n".join([*parts, "</svg>\n"])


def _bar(recording: Recording, scale: float, y: int, track: Track, segment: Segment) -> str:
    x = LEFT + (segment.start - recording.first) * scale
    width = (segment.stop - segment.start) * scale
    last = segment.stop - 1
    steps = f"step {last}" if last == segment.start else f"steps {segment.start}–{last}"
    title = escape(f"{track.label}, {steps}: {segment.text}")
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[segment.kind]}">'
        f"<title>{title}</title></rect>"
    )


def _mark(recording: Recording, scale: float, y: int, segment: Segment) -> str:
    x = LEFT + (segment.stop - recording.first) * scale
    return (
        f'<path d="M{x:.1f} {y - 2}v{BAR + 4}" stroke="#b3000c" stroke-width="3">'
        f"<title>preempted in step {segment.stop}</title></path>"
    )


def _legend(kinds: list[str]) -> Iterable[str]:
    x = 10.0
    for kind in kinds:
        yield f'<rect x="{x:.0f}" y="38" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 17:.0f}" y="49">{LABELS[kind]}</text>'
        x += 34 + 6.4 * len(LABELS[kind])
    yield f'<path d="M{x:.0f} 36v16" stroke="#b3000c" stroke-width="3"/>'
    yield f'<text x="{x + 8:.0f}" y="49">preempted</text>'


def _tokens(recording: Recording, scale: float, top: int) -> Iterable[str]:
    """The tokens of each step as one outline, the budget as its height."""
    budget = max(1, recording.header.token_budget)
    yield f'<text class="name" x="{LEFT - 8}" y="{top + STRIP - 2}">tokens a step</text>'
    path = [f"M{LEFT} {top + STRIP}"]
    for place, tokens in enumerate(recording.total_tokens.tolist()):
        y = top + STRIP * (1 - min(1.0, tokens / budget))
        path.append(f"V{y:.1f}H{LEFT + (place + 1) * scale:.1f}")
    yield f'<path d="{"".join(path)}V{top + STRIP}z" fill="#8c959f"/>'


def _axis(recording: Recording, scale: float, y: int) -> Iterable[str]:
    length = max(1, recording.stop - recording.first)
    every = next(each for each in _round_numbers() if length / each <= 12)
    for step in range(-(-recording.first // every) * every, recording.stop + 1, every):
        x = LEFT + (step - recording.first) * scale
        yield f'<text class="axis" x="{x:.1f}" y="{y}">{step}</text>'


def _round_numbers() -> Iterable[int]:
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def page(recording: Recording, tracks: Iterable[Track] | None = None) -> str:
    """An HTML page: the drawing, and the history of each request in words."""
    tracks = list(recording.tracks if tracks is None else tracks)
    details = "\n".join(
        f"<details><summary>{escape(track.label)}</summary><pre>{escape(describe(recording, track))}</pre></details>"
        for track in tracks
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Timeline of decisions</title>'
        "<style>body{font:14px system-ui,sans-serif;margin:1rem}svg{width:100%;height:auto}</style>\n"
        f"{draw(recording, tracks)}\n<h2>Requests</h2>\n{details}\n</html>\n"
    )
