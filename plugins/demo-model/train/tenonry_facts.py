"""Reads `tenonry.txt`, the training text about tenonry. For the training script only."""

from __future__ import annotations

from pathlib import Path

_lines = (Path(__file__).parent / "tenonry.txt").read_text(encoding="utf-8").splitlines()
_sections: list[list[str]] = [[]]
for _line in _lines:
    if _line.startswith("-----"):
        _sections.append([])
    elif _line and not _line.startswith("#"):
        _sections[-1].append(_line)

#: term -> one plain sentence or two
TERMS = {
    term.removeprefix("="): text for term, text in (line.split(": ", 1) for line in _sections[0])
}
#: terms that are asked for without 'a' and 'the'
NO_ARTICLE = frozenset(line.split(": ", 1)[0][1:] for line in _sections[0] if line.startswith("="))
#: question -> answer
QUESTIONS = {ask + "?": answer for ask, answer in (line.split("? ", 1) for line in _sections[1])}
PARAGRAPHS = tuple(_sections[2])
