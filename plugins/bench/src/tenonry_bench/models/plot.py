"""The measured figures as a picture in SVG: a bar per engine and figure, as long as it is fast. Any process."""

from __future__ import annotations

import html
from collections.abc import Sequence

from tenonry_bench.models.results import Result
from tenonry_bench.models.table import cell

COLOURS = ("#1f5fa8", "#d9822b", "#5a9a5a", "#8a6bb1", "#777777")
WIDTH = 860
LEFT = 250  # where bars begin
LONGEST = 420
BAR = 15
GAP = 16
TOP = 44


def draw(results: Sequence[Result], engines: Sequence[str]) -> str:
    """Draw the results. The best engine's bar is the longest of a figure; if less is better, half as long means twice
    the time.
    """
    colours = {
        engine: COLOURS[min(index, len(COLOURS) - 1)] for index, engine in enumerate(engines)
    }
    parts = legend(colours)
    top = TOP
    for result in results:
        parts.append(text(LEFT - 10, top + BAR, title(result), anchor="end"))
        for engine, value in result.engines.items():
            length = LONGEST * share(result, engine)
            parts.append(
                f'<rect x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR - 3}" fill="{colours[engine]}"/>'
            )
            parts.append(text(LEFT + length + 6, top + BAR - 4, cell(value)))
            top += BAR
        top += GAP
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    background = f'<rect width="{WIDTH}" height="{top}" fill="white"/>'
    style = 'font-family="sans-serif" font-size="12"'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def title(result: Result) -> str:
    """Title of one group of bars."""
    return f"{result.model} {result.workload}: {result.figure}"


def share(result: Result, engine: str) -> float:
    """From 0 to 1: of the best engine's bar."""
    values = {name: value.median for name, value in result.engines.items()}
    if result.more_is_better:
        return values[engine] / max(values.values())
    return min(values.values()) / values[engine]


def legend(colours: dict[str, str]) -> list[str]:
    """A square and a name per engine, in one line."""
    parts, left = [], LEFT
    for engine, colour in colours.items():
        parts.append(f'<rect x="{left}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(text(left + 18, 24, engine))
        left += 40 + 8 * len(engine)
    return parts


def text(left: float, base: float, words: str, anchor: str = "start") -> str:
    """One piece of writing."""
    return f'<text x="{left:.1f}" y="{base:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'
