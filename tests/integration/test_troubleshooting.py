"""Every text that the troubleshooting page quotes is one that the sources can produce."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
SOURCES = ["core", "executors", "plugins", "schedulers", "stat_loggers"]
LEAST_LETTERS = 12  # of a template, outside its fields: one that consists almost only of fields matches anything
FIELD = "(?s:.+?)"
LOG_FIELD = re.compile(r"%[.\d]*[sdrgf]")
TIRED = "engine 0 is tired; send it to bed"
NESTING = re.compile(r"engine \d+ could not start: ")


def literal_parts(node: ast.expr) -> str | None:
    """A text in the source as a regular expression; its fields match anything. None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FIELD.join(map(re.escape, LOG_FIELD.split(node.value)))
    if isinstance(node, ast.JoinedStr):
        return "".join(
            re.escape(part.value) if isinstance(part, ast.Constant) else FIELD
            for part in node.values
        )
    return None


def templates(quoted: str) -> Iterator[re.Pattern[str]]:
    """The texts of the sources of which each part occurs in `quoted`; to compile the others would take seconds."""
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("src/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                text = literal_parts(node) if isinstance(node, ast.expr) else None
                if (
                    text is not None
                    and len(re.findall(r"[A-Za-z]", text.replace(FIELD, ""))) >= LEAST_LETTERS
                    and all(part in quoted for part in text.split(FIELD))
                ):
                    yield re.compile(text)


@pytest.fixture(scope="module")
def known() -> list[re.Pattern[str]]:
    return list(templates(re.escape("\n".join([*quoted(), TIRED]))))


def quoted() -> list[str]:
    return [
        text.strip()
        for text in re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ]


def test_the_page_quotes_texts():
    assert len(quoted()) > 30


@pytest.mark.parametrize("text", quoted())
def test_a_quoted_text_occurs_in_the_sources(known, text):
    inner = NESTING.sub("", text)
    assert any(template.fullmatch(inner) for template in known), (
        f"nothing in the sources says: {inner}"
    )


def test_a_text_that_nobody_says_is_found(known):
    assert not any(template.fullmatch(TIRED) for template in known)
