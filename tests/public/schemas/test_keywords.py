"""Each keyword of each draft: a grammar accepts exactly the values that satisfy the schema, or names the part."""

from __future__ import annotations

import json

import jsonschema
import pytest
from keywords import REFUSED, SERVED

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_llguidance.backend import LLGuidance
from tenonry_grammars.base import Grammar, GrammarContext, GrammarError
from tenonry_testkit.fakes.tokenizer import END, TOKENIZER_JSON
from tenonry_testkit.grammar import VOCAB_SIZE, GrammarContract, tokens_of


@pytest.fixture(scope="module")
def backend() -> LLGuidance:
    return LLGuidance(GrammarContext(TOKENIZER_JSON, VOCAB_SIZE, (END,)))


def accepts(backend: LLGuidance, grammar: Grammar, text: str) -> bool:
    """Return True if the whole text is allowed, and may end there."""
    matcher = grammar.matcher((END,))
    tokens = tokens_of(text)
    if matcher.accept(tokens) < len(tokens):
        return False
    (allowed,) = GrammarContract().masks(backend, matcher)
    return END in allowed


@pytest.mark.nightly_after(40)
@pytest.mark.parametrize("name", SERVED)
def test_exactly_the_valid_values_are_accepted(name, backend):
    case = SERVED[name]
    schema = {"$schema": case.draft, **case.schema}
    oracle = jsonschema.validators.validator_for(schema)
    validator = oracle(schema, format_checker=jsonschema.FormatChecker())
    grammar = backend.compile(StructuredOutput(json=json.dumps(schema)))
    for value in (*case.valid, *case.invalid):
        is_valid = value in case.valid and not any(value is other for other in case.invalid)
        assert validator.is_valid(value) == is_valid, f"the case is wrong: {value}"
        assert accepts(backend, grammar, json.dumps(value)) == is_valid, value


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_grammar_holds_is_refused_by_path(name, backend):
    case = REFUSED[name]
    with pytest.raises(GrammarError, match=case.words) as refused:
        backend.compile(StructuredOutput(json=json.dumps(case.schema)))
    assert refused.value.path == case.path


@pytest.mark.parametrize("key", ["a", "\\u0061"])
def test_an_escaped_name_does_not_pass_by_the_rule_of_a_property(key, backend):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    grammar = backend.compile(StructuredOutput(json=json.dumps(schema)))
    assert not accepts(backend, grammar, f'{{"{key}": "x"}}')
