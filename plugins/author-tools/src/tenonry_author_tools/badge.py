"""Badge of a package: kinds, interface versions and grade, as an SVG image or as JSON of an endpoint. Command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from tenonry.errors import ConfigError

COLORS = {"A": "#4c1", "B": "#97ca00", "C": "#9f9f9f", "F": "#e05d44"}
UNCHECKED = "not checked"
CHAR_PX = 7
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {text}">
<rect width="{split}" height="20" fill="#555"/>
<rect x="{split}" width="{rest}" height="20" fill="{color}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="6" y="14">{label}</text>
<text x="{start}" y="14">{text}</text>
</g>
</svg>
"""


def message(versions: Mapping[str, tuple[int, int]], grade: str) -> str:
    """Text of the badge. `versions`: kind → interface version of the plugin, and of this kernel."""
    names = []
    for kind, (version, current) in sorted(versions.items()):
        place = {0: "N", 1: "N\N{MINUS SIGN}1"}.get(current - version, "unsupported")
        names.append(f"{kind.replace('_', ' ')} {version} ({place})")
    return f"{', '.join(names) or 'no versioned interface'}: {grade}"


def check_badge(path: Path) -> None:
    """Raises ConfigError for another suffix than .svg and .json, and for a folder that does not exist."""
    if path.suffix not in {".svg", ".json"}:
        raise ConfigError(f"badge {path}: give a name that ends in .svg or .json")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"badge {path}: there is no folder {path.absolute().parent}; create it")


def write_badge(path: Path, text: str, grade: str) -> None:
    """Write the badge in the format of the suffix, which `check_badge` accepts."""
    if path.suffix == ".svg":
        path.write_text(svg("tenonry", text, COLORS[grade]), "utf-8")
    else:
        answer = {
            "schemaVersion": 1,
            "label": "tenonry",
            "message": text,
            "color": COLORS[grade].removeprefix("#"),
        }
        path.write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n", "utf-8")


def svg(label: str, text: str, color: str) -> str:
    """An image with a grey and a coloured half."""
    split, rest = (12 + CHAR_PX * len(part) for part in (label, text))
    return SVG.format(
        label=escape(label),
        text=escape(text),
        color=color,
        split=split,
        rest=rest,
        width=split + rest,
        start=split + 6,
    )
