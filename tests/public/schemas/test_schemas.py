"""Whole schemas: accepted, complete enough for a value of each, and every random text that a grammar allows is valid.

The sample is our own. `TENONRY_PUBLIC_SCHEMAS` may name a folder of published ones (*.json): a refusal names the part,
and no draw is invalid. `draws.py` prints the numbers of such a folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from draws import Drawer, Tally, validator_of
from sample import SAMPLES

VARIABLE = "TENONRY_PUBLIC_SCHEMAS"
GIVEN = os.environ.get(VARIABLE)
DRAWS = 12


@pytest.fixture(scope="module")
def drawer() -> Drawer:
    return Drawer()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_value_of_each_kind_is_accepted_and_all_draws_are_valid(name, drawer):
    schema, value = SAMPLES[name]
    assert validator_of(schema).is_valid(value), "the sample is wrong"
    assert drawer.accepts(drawer.grammar(schema), json.dumps(value))
    tally = Tally(drawer)
    tally.add(name, schema, DRAWS)
    assert not tally.wrong
    assert tally.num_complete


class AnotherSchema(Drawer):
    """Draws integers, whatever the schema."""

    def grammar(self, schema):
        return super().grammar({"type": "integer"})


def test_a_draw_that_breaks_the_schema_is_noticed():
    """The validator can fail."""
    tally = Tally(AnotherSchema())
    tally.add("n", {"type": "string"}, 3)
    assert len(tally.wrong) == tally.num_complete == 3


@pytest.mark.skipif(GIVEN is None, reason=f"{VARIABLE} names no folder of schemas")
@pytest.mark.parametrize("file", sorted(Path(GIVEN).glob("**/*.json")) if GIVEN else [])
def test_a_published_schema_is_refused_by_path_or_every_draw_is_valid(file, drawer):
    tally = Tally(drawer)
    tally.add(file.name, json.loads(file.read_text(encoding="utf-8")), 2)
    assert not tally.wrong
    assert all(tally.refused.values())
