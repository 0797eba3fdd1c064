"""Both backends give a schema one meaning: they share its reading, and each refuses by path what its library lacks.

What xgrammar writes for a schema is a part of what llguidance allows, and both parts are valid.
"""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from draws import Drawer, judged, validator_of
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from sample import SAMPLES

from tenonry.errors import RequestError
from tenonry_grammars.base import GrammarError

pytest.importorskip("xgrammar", reason="xgrammar is not installed")
from tenonry_grammar_xgrammar.backend import XGrammar

DRAWS = 4


@pytest.fixture(scope="module")
def wide() -> Drawer:
    return Drawer()


@pytest.fixture(scope="module")
def narrow() -> Drawer:
    return Drawer(XGrammar)


def compare(wide: Drawer, narrow: Drawer, schema, draws: int = DRAWS) -> int:
    """Number of texts that both allow. Raises GrammarError where the schema is refused by the narrower one."""
    try:
        some = narrow.grammar(schema)
    except RequestError as error:
        raise GrammarError(str(error)) from None
    every = wide.grammar(schema)  # what is refused there is refused here
    validator = validator_of(schema)
    complete = 0
    for number in range(draws):
        found = narrow.draw(some, random.Random(number))
        assert not found.is_stuck, found.text
        if found.is_complete:
            complete += 1
            assert not list(judged(validator, found.text))
            compact = respaced(found.text)
            assert compact is None or wide.accepts(every, compact), compact
    return complete


def respaced(text: str) -> str | None:
    """`text`, a JSON value, without white space; None if a number of it, as 1e999, is too large for Python."""
    try:
        return json.dumps(
            json.loads(text), ensure_ascii=False, allow_nan=False, separators=(",", ":")
        )
    except ValueError:
        return None


@pytest.mark.parametrize("name", SAMPLES)
def test_each_sample_has_one_meaning(name, wide, narrow):
    schema, _ = SAMPLES[name]
    with refused_by_xgrammar_alone():
        compare(wide, narrow, schema, 8)


@contextlib.contextmanager
def refused_by_xgrammar_alone():
    try:
        yield
    except GrammarError as error:
        if "xgrammar" not in str(error):
            raise


names = st.sampled_from(["a", "b", "kind"])
texts = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "maxLength": st.integers(2, 4),
        "pattern": st.sampled_from(["^[ab]+$", "b", "^a|b$"]),
    },
)
numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={"minimum": st.integers(-3, 3), "exclusiveMaximum": st.integers(4, 9)},
)
values = st.sampled_from([None, True, 0, 1.5, "a", "b", [1], {"a": 1}])
leaves = st.one_of(
    texts,
    numbers,
    st.sampled_from([{}, True, {"type": "null"}, {"type": ["boolean", "null"]}]),
    st.builds(lambda some: {"enum": some}, st.lists(values, min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, values),
)


def combined(part):
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, part, max_size=3)},
        optional={
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans() | part,
            "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
            "maxProperties": st.integers(1, 3),
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "prefixItems": st.lists(part, min_size=1, max_size=2),
            "items": part,
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(2, 3),
        },
    )
    several = st.builds(
        lambda keyword, options: {keyword: options},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(part, min_size=1, max_size=3),
    )
    negated = st.builds(lambda one, other: {**one, "not": other}, texts | numbers, leaves)
    return st.one_of(objects, arrays, several, negated)


schemas = st.recursive(leaves, combined, max_leaves=6)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas)
def test_any_schema_has_one_meaning(wide, narrow, schema):
    try:
        compare(wide, narrow, schema)
    except GrammarError:
        reject()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas)
def test_a_refusal_is_that_of_the_reader_or_names_xgrammar(wide, narrow, schema):
    refusal = refusal_of(narrow, schema)
    if refusal_of(wide, schema):
        assert refusal
    else:
        assert not refusal or "xgrammar" in refusal


def refusal_of(drawer, schema) -> str:
    """The reason why a schema is not served; "" if it is."""
    try:
        drawer.grammar(schema)
    except (GrammarError, RequestError) as error:
        return str(error)
    return ""
