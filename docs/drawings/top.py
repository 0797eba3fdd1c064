"""Draws top.svg, the view of `tenonry top`, from top.json, its figures for a real server. `--check` compares.

`python docs/drawings/top.py --record` serves the demo model to twelve clients and writes top.json; without words the
script draws it again, after a change of the view. A test fails when the drawing is out of date.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tenonry_commands.screen import screen

HERE = Path(__file__).resolve().parent
FIGURES, DRAWING = HERE / "top.json", HERE / "top.svg"
COMMAND = "tenonry top"
URL = "http://127.0.0.1:8000"
FLAGS = ("--max-num-seqs", "8", "--num-gpu-blocks-override", "256")
CLIENTS = 12
INTERVAL_S = "5"
LEFT, TOP, LINE, WIDTH = 16, 52, 18, 760
STYLE = (
    "text{font:13px ui-monospace,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}"
    ".name{fill:#7ee787}.prompt{fill:#8b949e}"
)


def record() -> dict[str, Any]:
    """Return what `tenonry top --json` prints for a server with more clients than rows."""
    from served import busy, served

    with served("demo", *FLAGS) as url, busy(url, "demo", CLIENTS):
        words = ["top", "--url", url, "--interval", INTERVAL_S, "--once", "--json"]
        command = [sys.executable, "-m", "tenonry", *words]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, Any] = json.loads(printed)
    return found


def draw(found: dict[str, Any]) -> str:
    """Return the view as SVG: a terminal with one text per line."""
    title, *lines = screen(URL, found).splitlines()
    height = TOP + LINE * len(lines) + 12
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{COMMAND}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>',
        f'<text class="prompt" x="{LEFT}" y="{TOP - LINE - 8}">$ {COMMAND}</text>',
        f'<text x="{LEFT}" y="{TOP - 4}">{escape(title)}</text>',
    ]
    for number, line in enumerate(lines, start=1):
        y = TOP - 4 + LINE * number
        name, value = line[:12], line[12:]
        drawn.append(
            f'<text x="{LEFT}" y="{y}"><tspan class="name">{escape(name)}</tspan>{escape(value)}</text>'
        )
    return "\n".join([*drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    if "--record" in sys.argv:
        FIGURES.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    text = draw(json.loads(FIGURES.read_text(encoding="utf-8")))
    if "--check" in sys.argv:
        sys.exit(DRAWING.read_text(encoding="utf-8") != text)
    DRAWING.write_text(text, encoding="utf-8")
