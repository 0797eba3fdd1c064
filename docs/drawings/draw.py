"""Makes request.svg of request.toml. `--check` compares.

Run it as `python docs/drawings/draw.py` after a change of request.toml; a test fails when the drawing is out of date.
"""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
SOURCE, DRAWING = HERE / "request.toml", HERE / "request.svg"
BOX_WIDTH, BOX_HEIGHT = 138, 34
COLUMN, ROW = 266, 70  # distances of the boxes, in pixels
LEFT, TOP = 40, 96
CHARACTER = 6.7  # the width of one in a label
CURVE = 20  # how far an arrow between boxes of one column leaves it, for each row that it passes
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle }
.title { font-size: 18px; font-weight: 600; text-anchor: start }
.caption { fill: #57606a; text-anchor: start }
.call { font: 11px ui-monospace, monospace }
.process { fill: none; stroke: #8c959f; stroke-dasharray: 5 4 }
.kernel { fill: #ddebff; stroke: #0a4fb3 }
.plugin { fill: #ffe8d1; stroke: #b35900 }
.arrow { fill: none; stroke: #1b1f24; stroke-width: 1.2; marker-end: url(#head) }
"""

HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#1b1f24"/></marker></defs>'
)

Point = tuple[float, float]


def read() -> dict[str, Any]:
    """The source of the drawing."""
    return tomllib.loads(SOURCE.read_text("utf-8"))


def draw(source: dict[str, Any]) -> str:
    """The drawing as SVG text."""
    at = {name: tuple(part["at"]) for name, part in source["part"].items()}
    width = LEFT * 2 + COLUMN * max(column for column, _ in at.values()) + BOX_WIDTH
    height = TOP + ROW * max(row for _, row in at.values()) + BOX_HEIGHT + 40
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    lines = [
        opening + f'aria-label="{escape(source["title"])}">',
        f"<style>{STYLE}</style>",
        HEAD,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(LEFT - 20, 28, source["title"], "title"),
        text(LEFT - 20, 50, source["caption"], "caption"),
        *(process(each, height) for each in source["process"]),
        *(box(name, at[name], "plugin" in part) for name, part in source["part"].items()),
    ]
    calls = [
        (caller, called, call)
        for caller, targets in source["calls"].items()
        for called, call in targets.items()
    ]
    pairs = {(caller, called) for caller, called, _ in calls}
    for caller, called, call in calls:
        lines.append(arrow(at[caller], at[called], call, shared=(called, caller) in pairs))
    return "\n".join([*lines, "</svg>"]) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Text around a point, or from it on."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def label(x: float, y: float, call: str) -> str:
    """The name of a call, on a white ground."""
    width = CHARACTER * len(call) + 4
    ground = (
        f'<rect x="{x - width / 2:g}" y="{y - 10:g}" width="{width:g}" height="13" fill="#fff"/>'
    )
    return ground + text(x, y, call, "call")


def process(source: dict[str, Any], height: int) -> str:
    """The frame of a process around its columns."""
    first, last = source["columns"]
    x = LEFT - 20 + COLUMN * first
    width = COLUMN * (last - first) + BOX_WIDTH + 40
    frame = f'<rect x="{x}" y="66" width="{width}" height="{height - 76}" rx="8" class="process"/>'
    return frame + text(x + width / 2, 84, source["name"])


def corner(at: tuple[int, int]) -> Point:
    """The upper left corner of the box in a column and row."""
    return LEFT + COLUMN * at[0], TOP + ROW * at[1]


def box(name: str, at: tuple[int, int], is_plugin: bool) -> str:
    """The box of a part."""
    x, y = corner(at)
    kind = "plugin" if is_plugin else "kernel"
    frame = (
        f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" class="{kind}"/>'
    )
    return frame + text(x + BOX_WIDTH / 2, y + 22, name)


def arrow(start: tuple[int, int], end: tuple[int, int], call: str, *, shared: bool) -> str:
    """An arrow with its label. `shared`: another one goes the other way, so both leave the middle."""
    (x0, y0), (x1, y1) = corner(start), corner(end)
    middle = BOX_HEIGHT / 2
    if start[0] != end[0]:
        shift = (7 if start[0] < end[0] else -7) * shared
        x0, x1 = (x0 + BOX_WIDTH, x1) if start[0] < end[0] else (x0, x1 + BOX_WIDTH)
        y0, y1 = y0 + middle - shift, y1 + middle - shift
        line = f'<path d="M{x0:g} {y0:g} {x1:g} {y1:g}" class="arrow"/>'
        below = 4 if start[1] != end[1] else 14 if shift < 0 else -5
        return line + label((x0 + x1) / 2, (y0 + y1) / 2 + below, call)
    rows = abs(end[1] - start[1])
    if rows == 1:
        x = x0 + BOX_WIDTH / 2
        y0, y1 = (y0 + BOX_HEIGHT, y1) if y0 < y1 else (y0, y1 + BOX_HEIGHT)
        line = f'<path d="M{x:g} {y0:g} {x:g} {y1:g}" class="arrow"/>'
        return line + label(x, (y0 + y1) / 2 + 3, call)
    x0 += BOX_WIDTH
    bend = x0 + CURVE * (rows - 1) * 4 / 3
    y0, y1 = y0 + middle + 6, y1 + middle - 6
    # The label stands half a row before the end of y(t) = y0 + (y1 - y0)(3t² - 2t³), x(t) = x0 + 3t(1 - t)(bend - x0).
    t = 0.5 - math.sin(math.asin(1 - 2 * (1 - ROW / 2 / abs(y1 - y0))) / 3)
    x, y = x0 + 3 * t * (1 - t) * (bend - x0), y1 - math.copysign(ROW / 2, y1 - y0)
    curve = (
        f'<path d="M{x0:g} {y0:g} C{bend:g} {y0:g} {bend:g} {y1:g} {x0:g} {y1:g}" class="arrow"/>'
    )
    return curve + label(x, y + 4, call)


def main() -> int:
    """Write the drawing, or compare it; returns the exit status."""
    drawing = draw(read())
    if "--check" in sys.argv:
        return int(not DRAWING.is_file() or DRAWING.read_text("utf-8") != drawing)
    DRAWING.write_text(drawing, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
