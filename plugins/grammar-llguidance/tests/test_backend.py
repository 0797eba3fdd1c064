"""The backend keeps the contract, and its own promises: translation, limits, threads (SO-1)."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_llguidance.backend import LLGuidance
from tenonry_grammar_llguidance.translate import MAX_GBNF_BYTES, translated
from tenonry_grammars.base import GrammarContext, GrammarError
from tenonry_testkit.fakes.tokenizer import END, MARKUP, OTHER_END, PIECES, TOKENIZER_JSON
from tenonry_testkit.grammar import GrammarContract, tokens_of


class TestContract(GrammarContract):
    backend = "tenonry_grammar_llguidance.backend:LLGuidance"


@pytest.mark.parametrize("num_processors", [2, 4])
def test_many_rows_are_what_each_is_alone_with_threads_and_without(monkeypatch, num_processors):
    monkeypatch.setattr(os, "cpu_count", lambda: num_processors)
    contract = TestContract()
    assert contract.open()._num_threads == num_processors // 2
    contract.test_many_masks_are_those_of_each()
    contract.test_one_token_for_each_of_many_is_that_token_alone()


@pytest.fixture(scope="module")
def backend() -> LLGuidance:
    return LLGuidance(GrammarContext(TOKENIZER_JSON, 300, (END,)))


HEAVY = StructuredOutput(
    json=json.dumps({"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500})
)
MANY_WORDS = tokens_of(f'"{" ".join(f"word{place}" for place in range(45))}"')


def accepts(backend: LLGuidance, text: str, **spec) -> bool:
    """Return True if the whole text is allowed, and may end there."""
    matcher = backend.compile(StructuredOutput(**spec)).matcher([END])
    tokens = tokens_of(text)
    return matcher.accept(tokens) == len(tokens) and matcher.inner.is_accepting()


class TestJson:
    @pytest.mark.parametrize("text", ['{"a":1}', '{ "a": 1 }', '{\n  "a": 1\n}', '{\r\n\t"a" : 1}'])
    def test_white_space_as_people_write_it(self, backend, text):
        assert accepts(backend, text, json_object=True)

    @pytest.mark.parametrize(
        "text", ['{  "a":1}', '{\n\n"a":1}', ' {"a":1}', "{" + "\n" + " " * 21 + "}"]
    )
    def test_white_space_without_end_is_not_allowed(self, backend, text):
        assert not accepts(backend, text, json_object=True)

    def test_a_schema_cannot_switch_checks_off(self, backend):
        schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
        with pytest.raises(GrammarError, match="uniqueItems"):
            backend.compile(StructuredOutput(json=json.dumps(schema)))

    def test_true_is_any_value(self, backend):
        assert accepts(backend, "[1]", json="true")

    @pytest.mark.parametrize(
        ("schema", "message"),
        [
            ("false", "nothing satisfies it"),
            ("[]", "the schema is a list"),
            ("1", "the schema is a int"),
            ('{"type": "null"}]', "no JSON"),
            ('{"type"', "no JSON"),
            ("{]}", "no JSON"),
        ],
    )
    def test_what_is_no_schema_is_refused(self, backend, schema, message):
        with pytest.raises(GrammarError, match=message):
            backend.compile(StructuredOutput(json=schema))


class TestChoice:
    @given(
        st.lists(
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
            min_size=1,
            max_size=5,
            unique=True,
        )
    )
    def test_each_is_allowed_and_no_beginning_of_one(self, backend, choices):
        for choice in choices:
            assert accepts(backend, choice, choice=tuple(choices))
            if choice[:-1] and choice[:-1] not in choices:
                assert not accepts(backend, choice[:-1], choice=tuple(choices))


class TestGbnf:
    @pytest.mark.parametrize(
        ("grammar", "right", "wrong"),
        [
            ('root ::= "\\u0041b"', "Ab", "\u041b"),
            ('root ::= "\\x41\\x2d\\x22"', 'A-"', "A-"),
            ("root ::= [\\u0061-\\u0063]+ # a comment\n", "abc", "d"),
            ('root ::= "\\\\u0041"', "\\u0041", "A"),
            ('root ::= a | "x" root\na ::= "y"{2,3}', "xyy", "xy"),
            ('root ::= ("a" | "b")* [^a-z]', "abba-", "abba"),
        ],
    )
    def test_is_read(self, backend, grammar, right, wrong):
        assert accepts(backend, right, grammar=grammar)
        assert not accepts(backend, wrong, grammar=grammar)

    @pytest.mark.parametrize(
        "grammar",
        ['root ::= "\\ud800"', 'root ::= "\\U00110000"', "root ::= (", "root ::= x", "a ::= b"],
    )
    def test_what_is_none_is_refused(self, backend, grammar):
        with pytest.raises(GrammarError):
            backend.compile(StructuredOutput(grammar=grammar))

    def test_a_long_one_is_refused_with_both_sizes(self, backend):
        grammar = f'root ::= "{"x" * MAX_GBNF_BYTES}"'
        with pytest.raises(
            GrammarError, match=rf"has {MAX_GBNF_BYTES + 11} bytes; at most {MAX_GBNF_BYTES}"
        ):
            backend.compile(StructuredOutput(grammar=grammar))


class TestRegex:
    @given(
        st.sampled_from(
            [
                r"a|ab",
                r"(a+)+b",
                r"[^\n]{1,3}",
                r"(ab|a)(c|bcd)",
                r"\d+(\.\d+)?",
                r"a{2,4}",
                r"^ab?$",
                r"a.c",
            ]
        ),
        st.text("abcd1.\n", max_size=6),
    )
    def test_allows_what_re_matches(self, backend, pattern, text):
        assert accepts(backend, text, regex=pattern) == bool(re.fullmatch(pattern, text))

    @pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", "(" * 3000, "a**b(", "[z-a]"])
    def test_what_it_cannot_match_is_refused_in_one_line(self, backend, pattern):
        with pytest.raises(GrammarError) as caught:
            backend.compile(StructuredOutput(regex=pattern))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 500


class TestSpecialTokens:
    @pytest.mark.parametrize(
        ("grammar", "allowed"),
        [
            ("start: <other>", {OTHER_END}),
            (f"start: <[{MARKUP}]>", {MARKUP}),
            ('start: "x" # <end> and "<other>"\n', {ord("x")}),
            ("start: /<(end|other)>/", {ord("<")}),
            ('start: %json {"const": "<other>"}', {ord('"')}),
        ],
    )
    def test_a_grammar_in_larks_notation_names_them(self, backend, grammar, allowed):
        matcher = backend.compile(StructuredOutput(grammar=grammar)).matcher([END])
        assert TestContract().masks(backend, matcher) == [allowed]

    def test_an_unknown_one_is_refused_with_those_there_are(self, backend):
        with pytest.raises(
            GrammarError, match="no special token <and>; it has <end>, <other>, <tool>"
        ):
            backend.compile(StructuredOutput(grammar="start: <and>"))

    def test_a_model_without_end_ids_keeps_all_of_its_text(self):
        backend = LLGuidance(GrammarContext(TOKENIZER_JSON, 300, ()))
        matcher = backend.compile(StructuredOutput(regex="\\x00a")).matcher([END])
        assert TestContract().masks(backend, matcher) == [{PIECES[b"\x00"]}]


class TestSchemasInLark:
    GRAMMAR = 'start: "<" one ">" # %json {"type": "x"}\none: %json '

    @pytest.mark.parametrize(
        ("schema", "right", "wrong"),
        [
            ('{"type": "array",\n"items": {"type": "null"}, "title": "t"}', "[null]", "[1]"),
            ('{"oneOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}', "6", "4"),
            (
                '{"properties": {"a": {"type": "null"}}, "type": "object"}',
                '{"a":null}',
                '{"\\u0061":1}',
            ),
            ('{"const": "a", "x-guidance": {"lenient": true}}', '"a"', '"b"'),
        ],
    )
    def test_are_read_as_any_other(self, backend, schema, right, wrong):
        grammar = self.GRAMMAR + schema + "\n// the end"
        assert accepts(backend, f"<{right}>", grammar=grammar)
        assert not accepts(backend, f"<{wrong}>", grammar=grammar)

    @pytest.mark.parametrize(
        ("schema", "words"),
        [
            ('{"items": {"contains": {}}}', "%json /items: 'contains' is not served"),
            ('{"type": "strin"}', "%json: 'type' is 'strin'"),
            ('{"type": ', "%json"),
        ],
    )
    def test_what_is_not_served_is_refused_by_path(self, backend, schema, words):
        with pytest.raises(GrammarError, match=words):
            backend.compile(StructuredOutput(grammar=self.GRAMMAR + schema))


class TestLimits:
    def test_a_row_that_reaches_a_limit_has_no_token_left(self, backend):
        grammar = backend.compile(StructuredOutput(grammar='start: a{1000000}\na: "a"'))
        matcher = grammar.matcher([END])
        contract = TestContract()
        (first,) = contract.masks(backend, matcher)
        matcher.accept(sorted(first)[:1])
        assert contract.masks(backend, matcher) == [set()]

    def test_an_output_is_replayed_within_the_budgets_that_it_had(self, backend):
        """Half a million units in all, where each token may take 200 000 (G34)."""
        grammar = backend.compile(HEAVY)
        assert grammar.matcher([END]).accept(MANY_WORDS) == len(MANY_WORDS)
        assert not grammar.is_spent
        assert TestContract().masks(backend, grammar.matcher([END])) != [set()]

    def test_a_row_that_spends_what_rows_share_is_noticed(self, backend):
        grammar = backend.compile(HEAVY)
        matcher = grammar.matcher([END])
        assert matcher.inner.try_consume_tokens(MANY_WORDS) < len(MANY_WORDS)  # no mask between
        assert not grammar.is_spent
        assert TestContract().masks(backend, matcher) == [set()]
        assert grammar.is_spent
        assert TestContract().masks(backend, grammar.matcher([END])) == [set()]
        fresh = backend.compile(HEAVY)
        assert TestContract().masks(backend, fresh.matcher([END])) != [set()]

    def test_a_row_that_reaches_a_limit_of_its_own_spends_nothing(self, backend):
        grammar = backend.compile(StructuredOutput(grammar='start: a{1000000}\na: "a"'))
        matcher = grammar.matcher([END])
        contract = TestContract()
        (first,) = contract.masks(backend, matcher)
        matcher.accept(sorted(first)[:1])
        assert contract.masks(backend, matcher) == [set()]
        assert not grammar.is_spent

    def test_a_thousand_optional_properties_are_served(self, backend):
        names = [f"n{place}" for place in range(1000)]
        schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}}
        spec = {"json": json.dumps(schema | {"additionalProperties": False})}
        assert accepts(backend, "{}", **spec)
        assert accepts(backend, '{"n0": true, "n500": false, "n999": true}', **spec)
        assert not accepts(backend, '{"n999": true, "n1000": true}', **spec)

    def test_it_needs_no_torch(self):
        assert LLGuidance.__module__ in sys.modules
        assert not {name for name in vars(sys.modules[LLGuidance.__module__]) if "torch" in name}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ('{"const": "\\u0001a"}', ""),
        ('{"properties": {"a": {"enum": ["x", "\\u001Fy"]}}}', "/properties/a"),
        ('{"properties": {"\\u0000": {}}}', ""),
        ('{"properties": {"\\ud800": {}}}', ""),
    ],
)
def test_listed_texts_with_control_characters_are_refused_by_path(schema, path):
    """The library would write them without the character: no escape for it is allowed."""
    with pytest.raises(GrammarError, match="control character") as refused:
        translated(StructuredOutput(json=schema), {})
    assert refused.value.path == path


@pytest.mark.parametrize(
    "schema",
    ['{"const": "\\n\\t"}', '{"pattern": "^[^\\u0000-\\u001f]*$"}', '{"const": "\\\\u0001"}'],
)
def test_other_escapes_are_texts(schema):
    assert translated(StructuredOutput(json=schema), {})
