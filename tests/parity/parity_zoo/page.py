"""The page `docs/reference/models.md`: one row per type, counts on top. A run of a few types replaces their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from parity_zoo.build import group_of

if TYPE_CHECKING:
    from parity_zoo.zoo import Report

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "models.md"
DEFAULT_WORKER = "auto"
NOTHING = "-"
MAX_REASON = 240
HEAD = """# Models

*Written by `python3 dev.py bench parity`; do not edit.* Every causal type of transformers {version}, tiny, from its
own configuration class with random weights, served by a real engine, and compared with `generate` (greedy, float32,
one prompt at a time). The ways: mixed lengths in one batch, a second batch in the same engine, prompts in chunks of a
few tokens, shared prefixes, preemption, two completions per prompt, stop tokens in the middle; windows are shorter than
the prompts. [Which models are served](../how-to/choose-a-worker.md) says what the words mean.
"""
SECTION = """
## {title}

{counts}

| type in `config.json` | class | `auto`: outcome | served by | worker `torch` | why |
|---|---|---|---|---|---|
"""
TITLES = {
    "causal": "Causal language models",
    "text": "The text part of image models",
    "seq2seq": "Encoder-decoder models",
}
VERSION = re.compile(r"type of transformers (\S+),")


class Row(msgspec.Struct):
    """One type on the page; every field is plain text."""

    name: str
    architecture: str
    outcome: str
    served_by: str
    torch: str
    why: str

    def text(self) -> str:
        """The row as Markdown."""
        return f"| {' | '.join(msgspec.structs.astuple(self))} |"


def row(report: Report) -> Row:
    """The page's row for a type."""
    if report.unbuilt:
        return Row(report.name, NOTHING, "not built", NOTHING, NOTHING, _plain(report.unbuilt))
    auto = report.outcomes[DEFAULT_WORKER]
    torch = report.outcomes.get("torch", auto)
    served_by = auto.worker if auto.kind == "identical" else NOTHING
    why = auto.reason or torch.reason
    return Row(report.name, report.architecture, auto.kind, served_by, torch.kind, _plain(why))


def write(page: Path, reports: Iterable[Report], version: str, *, whole: str = "") -> None:
    """Write the page. Rows of other types stay, except those of the group `whole`, which was run whole.

    Raises ValueError when a part is to be written into a page of another version of transformers.
    """
    known = _read(page, version, must_fit=not whole)
    rows = {each.name: each for each in known if group_of(each.name) != whole}
    rows |= {report.name: row(report) for report in reports}
    text = HEAD.format(version=version)
    for group, title in TITLES.items():
        ordered = [rows[name] for name in sorted(rows) if group_of(name) == group]
        if ordered:
            text += SECTION.format(title=title, counts=counts(ordered))
            text += "".join(f"{each.text()}\n" for each in ordered)
    page.write_text(text, "utf-8")


def counts(rows: Sequence[Row]) -> str:
    """The numbers above the table."""
    built = [each for each in rows if each.outcome != "not built"]
    by_outcome = Counter(each.outcome for each in built)
    by_worker = Counter(each.served_by for each in built if each.served_by != NOTHING)
    share = 100 * by_outcome["identical"] / max(1, len(built))
    served = ", ".join(f"{number} by worker `{name}`" for name, number in by_worker.most_common())
    others = ", ".join(f"{by_outcome[kind]} {kind}" for kind in ("refused", "wrong", "crash"))
    unbuilt = len(rows) - len(built)
    return (
        f"**{len(rows)} types, {len(built)} of them built: {by_outcome['identical']} identical ({share:.0f} %), "
        f"{others}.** Served: {served or 'none'}. The other {unbuilt} cannot be built or generated with, for the "
        "reasons in their rows."
    )


def _read(page: Path, version: str, *, must_fit: bool) -> list[Row]:
    if not page.exists():
        return []
    text = page.read_text("utf-8")
    found = VERSION.search(text)
    if found is None or found[1] != version:
        if must_fit:
            raise ValueError(
                f"{page} is not of transformers {version}; run the whole zoo, without --only"
            )
        return []
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`" not in line]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [Row(*each) for each in cells]


def _plain(text: str) -> str:
    """A reason that breaks no table and names no folder of the run."""
    text = re.sub(r"/\S*/zoo-\S+?(?=[\s:,;)]|$)", "FOLDER", text)
    text = " ".join(
        text.replace("|", "/").replace("`", "").replace("<", "(").replace(">", ")").split()
    )
    return text if len(text) <= MAX_REASON else f"{text[: MAX_REASON - 1]}…"
