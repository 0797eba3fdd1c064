"""Decision records have the same fields, consecutive numbers and a line in their index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from house import ROOT

FOLDER = ROOT / "docs" / "adr"
RECORDS = sorted(FOLDER.glob("0*.md"))
FORM = re.compile(
    r"# (?P<number>\d+)\. (?P<title>\S[^\n]*)\n\n"
    r"- Status: (accepted|superseded by \[ADR \d+\]\(\d{4}-[a-z0-9-]+\.md\))\n- Date: 20\d\d-[01]\d-[0-3]\d\n\n"
    r"## Context\n\n\S.*?\n\n## Decision\n\n\S.*?\n\n## Consequences\n\n\S.*\n",
    re.DOTALL,
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_record_has_number_status_date_and_sections(record: Path):
    form = FORM.fullmatch(record.read_text(encoding="utf-8"))
    assert form is not None
    assert int(form["number"]) == int(record.name[:4])
    line = f"- [{form['number']}. {form['title']}]({record.name})"
    assert line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()


def test_numbers_are_consecutive():
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))


def test_form_rejects_a_record_without_consequences():
    text = (
        "# 1. A\n\n- Status: accepted\n- Date: 2026-11-20\n\n## Context\n\nA\n\n## Decision\n\nB\n"
    )
    assert FORM.fullmatch(text) is None
    assert FORM.fullmatch(f"{text}\n## Consequences\n\nC\n") is not None
