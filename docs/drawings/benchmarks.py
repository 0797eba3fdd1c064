"""Writes benchmarks.svg and the table of docs/explanation/benchmarks.md from the newest results. `--check` compares.

Run it as `python docs/drawings/benchmarks.py` after a change in bench/results; a test fails when they are out of date.
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DRAWING, PAGE = HERE / "benchmarks.svg", ROOT / "docs" / "explanation" / "benchmarks.md"
TABLE = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end -->)", re.DOTALL)
PEERS = {"vllm": ("vLLM", "#0a4fb3"), "llama-cpp": ("llama.cpp", "#b35900")}
LEFT, RIGHT, TOP, ROW = 290, 710, 84, 20
LEAST, MOST = 1 / 32, 32  # of the axis
STYLE = "text { font: 12px system-ui, sans-serif; fill: #1b1f24 } .title { font-size: 16px; font-weight: 600 }"

Result = dict[str, Any]


def newest() -> dict[str, Any]:
    """Return the newest results."""
    file = max((ROOT / "bench" / "results").glob("*.toml"))
    return tomllib.loads(file.read_text(encoding="utf-8"))


def ratio(result: Result, peer: str) -> float:
    """Return how many times better tenonry's median is than that of a peer."""
    ours, theirs = result["tenonry"][0], result[peer][0]
    return ours / theirs if result["figure"].startswith("tok/s") else theirs / ours


def charted(results: list[Result]) -> list[Result]:
    """Return the first figure of each workload."""
    found: dict[tuple[str, ...], Result] = {}
    for each in results:
        found.setdefault((each["machine"], each["model"], each["workload"]), each)
    return list(found.values())


def place(times: float) -> float:
    """Return the place of a ratio on the logarithmic axis."""
    share = math.log(min(max(times, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (RIGHT - LEFT)


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a line of text."""
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{mark}>{escape(words)}</text>'


def draw(data: dict[str, Any]) -> str:
    """Return the chart as SVG: ratios to each peer, one row per workload, on a logarithmic axis."""
    rows = charted(data["result"])
    width, height = RIGHT + 40, TOP + ROW * len(rows) + 12
    title = "tenonry compared with vLLM and llama.cpp on CPUs"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(16, 24, title, kind="title"),
        text(16, 44, f"Ratio of medians, {data['date']}: right of 1, tenonry is faster"),
    ]
    for index, (name, colour) in enumerate(PEERS.values()):
        x = 470 + 110 * index
        lines.append(f'<circle cx="{x}" cy="40" r="5" fill="{colour}"/>')
        lines.append(text(x + 10, 44, f"over {name}"))
    for times in (1 / 16, 1 / 4, 1, 4, 16):
        x, colour = place(times), "#1b1f24" if times == 1 else "#d0d7de"
        lines.append(
            f'<path d="M{x:.0f} {TOP - 8}V{height - 8}" stroke="{colour}"/>'
            + text(x, TOP - 14, f"{times:g}" if times >= 1 else f"1/{1 / times:g}", "middle")
        )
    for index, each in enumerate(rows):
        y = TOP + ROW * index + 8
        lines.append(text(16, y + 4, f"{each['machine']} · {each['model']} · {each['workload']}"))
        for peer, (_, colour) in PEERS.items():
            if peer in each:
                x = place(ratio(each, peer))
                lines.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{colour}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def cell(values: list[float] | None) -> str:
    """Return a median, with minimum and maximum where they are known."""
    if not values:
        return "–"
    median, *others = (f"{value:,}".replace(",", " ") for value in values)
    return f"{median} ({'–'.join(others)})" if others else median


def table(data: dict[str, Any]) -> str:
    """Return the results as a table of Markdown."""
    lines = [
        "| machine | model | workload | figure | tenonry | vLLM | llama.cpp | over vLLM | over llama.cpp |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in data["result"]:
        note = f" ({each['note']})" if "note" in each else ""
        cells = [each["machine"], each["model"], each["workload"], each["figure"] + note]
        cells += [cell(each.get(name)) for name in ("tenonry", *PEERS)]
        cells += [f"{ratio(each, peer):.2f}" if peer in each else "–" for peer in PEERS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def made() -> dict[Path, str]:
    """Return the files that follow from the newest results, with their contents."""
    data = newest()
    page = TABLE.sub(lambda _: table(data), PAGE.read_text(encoding="utf-8"))
    return {DRAWING: draw(data), PAGE: page}


if __name__ == "__main__":
    outdated = [
        file for file, content in made().items()
        if not file.exists() or file.read_text(encoding="utf-8") != content
    ]  # fmt: skip
    if "--check" in sys.argv:
        sys.exit(f"outdated: {', '.join(map(str, outdated))}" if outdated else 0)
    for changed in outdated:
        changed.write_text(made()[changed], encoding="utf-8")
