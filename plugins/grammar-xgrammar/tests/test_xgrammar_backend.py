"""The backend keeps the contract, and xgrammar enforces every keyword that it is given (SO-1)."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tenonry.sampling_params import StructuredOutput
from tenonry_grammar_xgrammar.backend import XGrammar
from tenonry_grammars.base import GrammarContext, GrammarError
from tenonry_grammars.bits import allowed_ids, num_words
from tenonry_testkit.fakes.tokenizer import END, PIECES, TOKENIZER_JSON
from tenonry_testkit.grammar import GrammarContract, tokens_of

pytest.importorskip("xgrammar", reason="xgrammar is not installed")

BYTES = {token_id: piece for piece, token_id in PIECES.items()}
VOCAB_SIZE = 300
CLOSING = {
    PIECES[piece.encode()] for piece in ('"', "}", "]", ",", ":", "0")
}  # so that ways come to an end


class TestContract(GrammarContract):
    backend = "tenonry_grammar_xgrammar.backend:XGrammar"


@pytest.fixture(scope="module")
def backend() -> XGrammar:
    return XGrammar(GrammarContext(TOKENIZER_JSON, VOCAB_SIZE, (END,)))


def accepts(backend: XGrammar, text: str, **spec) -> bool:
    """Return True if the whole text is allowed, and may end there."""
    matcher = backend.compile(StructuredOutput(**spec)).matcher([END])
    tokens = tokens_of(text)
    return matcher.accept(tokens) == len(tokens) and matcher.inner.is_completed()


def walked(backend: XGrammar, spec: StructuredOutput, seed: int, most: int = 400) -> str | None:
    """A text along a random way through the grammar; None for one that came to no end."""
    chance = random.Random(seed)
    matcher = backend.compile(spec).matcher([END])
    mask = np.zeros((1, num_words(VOCAB_SIZE)), np.int32)
    found = b""
    for _ in range(most):
        backend.fill_masks([matcher], mask)
        allowed = set(allowed_ids(mask[0]).tolist())
        assert allowed, found
        if END in allowed and (allowed == {END} or chance.random() < 0.4):
            return found.decode()
        ends = sorted(CLOSING & allowed)
        token = chance.choice(ends if ends and chance.random() < 0.5 else sorted(allowed - {END}))
        assert matcher.accept([token]) == 1
        found += BYTES[token]
    return None


# Of each keyword: a schema, values that it allows, and values that this keyword forbids.
EACH = {
    "type": ({"type": ["string", "null"]}, ["a", None], [1, True, [], {}]),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, [None], [1]),
    "const": ({"const": {"a": [1, 0.5, "é\n"]}}, [{"a": [1, 0.5, "é\n"]}], [{"a": [1, 0.5, ""]}, {}]),
    "enum": ({"enum": [1, "a", None]}, [1, "a", None], [2, "b", True]),
    "anyOf": ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, [None, True], [1]),
    "oneOf": ({"oneOf": [{"type": "null"}, {"type": "integer"}, {"enum": ["a"]}]}, [None, 1, "a"], ["b", True, []]),
    "allOf": ({"allOf": [{"type": "null"}]}, [None], [1]),
    "minimum": ({"type": "integer", "minimum": -3}, [-3, 0, 17], [-4, -10]),
    "maximum": ({"type": "number", "maximum": 10.5}, [10.5, 10, -3.25], [10.6, 11, 100]),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 1}, [1.5, 2, 10], [1, 0, 1.0, -2]),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 100}, [99, 0, -5], [100, 101, 1000]),
    "multipleOf": ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 8, -15]),
    "pattern": ({"type": "string", "pattern": '^a["\\\\]+$'}, ['a"', "a\\"], ["a", "b", 'a"b']),
    "format": ({"type": "string", "format": "date"}, ["2024-02-28"], ["2024-02-30", "a"]),
    "minLength": ({"type": "string", "minLength": 2}, ["ab", "é\u4e2d"], ["", "a", "é"]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["", "é\u4e2d"], ["abc", "a\\bc"]),
    "prefixItems": ({"prefixItems": [{"type": "null"}, {"const": 1}]}, [[None, 1], [None, 1, "x"]], [[1], [None, 2]]),
    "items": ({"items": {"type": "null"}}, [[], [None, None]], [[1], [None, 1]]),
    "minItems": ({"items": {"type": "null"}, "minItems": 2}, [[None] * 2, [None] * 3], [[], [None]]),
    "maxItems": ({"items": {"type": "null"}, "maxItems": 2}, [[], [None] * 2], [[None] * 3]),
    "properties": ({"properties": {"a": {"type": "null"}, 'b"': {}}}, [{"a": None}, {}, {'b"': 1}], [{"a": 1}]),
    "required": ({"properties": {"a": {}, "b": {}}, "required": ["b"]}, [{"b": 1}, {"a": 1, "b": 2}], [{}, {"a": 1}]),
    "additionalProperties": ({"additionalProperties": {"type": "null"}}, [{}, {"x": None}], [{"x": 1}]),
    "propertyNames": ({"propertyNames": {"pattern": "^[a-c]+$"}}, [{}, {"abc": 1}], [{"d": 1}, {"": 1}]),
    "minProperties": ({"properties": {"a": {}, "b": {}}, "minProperties": 2}, [{"a": 1, "b": 1}], [{}, {"b": 1}]),
    "patternProperties": (
        {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, [{"ab": None}, {}],
        [{"ab": 1}, {"b": None}],
    ),
    "uniqueItems": ({"items": {"enum": [1, 2]}, "uniqueItems": True}, [[], [1, 2], [2, 1]], [[1, 1], [1, 2, 1]]),
    "not": ({"type": ["null", "integer"], "not": {"type": "null"}}, [1], [None]),
    "if": (
        {
            "properties": {"k": {"enum": ["a", "b"]}, "v": {}}, "required": ["k"],
            "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["v"]},
        },
        [{"k": "a", "v": 1}, {"k": "b"}], [{"k": "a"}],
    ),
    "dependentRequired": (
        {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 2}], [{"a": 1}],
    ),
    "maxProperties": ({"additionalProperties": {}, "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 1}]),
}  # fmt: skip


def compact(value) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_valid(value, schema) -> bool:
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).is_valid(value)


class TestSchemas:
    @pytest.mark.parametrize("keyword", EACH)
    def test_what_a_keyword_forbids_is_not_allowed(self, backend, keyword):
        schema, right, wrong = EACH[keyword]
        asked = json.dumps(schema)
        for value in right:
            assert is_valid(value, schema)
            assert accepts(backend, compact(value), json=asked), value
        for value in wrong:
            assert not is_valid(value, schema)
            assert not accepts(backend, compact(value), json=asked), value

    def test_a_name_in_escapes_is_no_way_round_its_schema(self, backend):
        schema = {"properties": {"a": {"type": "null"}}}
        assert not accepts(backend, '{"a":null,"\\u0061":1}', json=json.dumps(schema))
        assert not accepts(backend, '{"\\u0061":1}', json=json.dumps(schema))

    def test_long_texts(self, backend):
        schema = json.dumps({"type": "string", "minLength": 150, "maxLength": 400})
        for length, is_right in ((149, False), (150, True), (400, True), (401, False)):
            assert accepts(backend, f'"{"é" * length}"', json=schema) == is_right

    def test_any_text_may_have_escapes_but_no_half_of_a_pair(self, backend):
        for text, is_right in (
            (r'"a\n\"\/\u00e9\ud83d"', False),
            (r'"a\n\"\/\u00e9\uD7FF b"', True),
            ('"a\x1f"', False),
        ):
            assert accepts(backend, text, json='{"type": "string"}') == is_right
            assert accepts(backend, f"[{text}]", json="true") == is_right

    @pytest.mark.parametrize("pattern", [r"^\S$", "^[^a]$", "^.{1}$", "^[\u00a1-\u167f]$"])
    def test_what_is_no_unicode_is_not_allowed(self, backend, pattern):
        schema = json.dumps({"type": "string", "pattern": pattern})
        grammar = backend.compile(StructuredOutput(json=schema))
        tails = [b"", b"\x80", b"\xbf", b"\x80\x80", b"\xbf\xbf"]
        for lead, second, tail in product(
            range(0xC0, 0xF8), (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF), tails
        ):
            text = bytes([lead, second]) + tail
            tokens = [*tokens_of('"'), *text, *tokens_of('"')]
            if grammar.matcher([END]).accept(tokens) == len(tokens):
                assert len(text.decode()) == 1

    def test_a_recursive_schema(self, backend):
        node = {
            "type": "object",
            "properties": {"next": {"$ref": "#"}},
            "additionalProperties": False,
        }
        assert accepts(backend, '{"next":{"next":{}}}', json=json.dumps(node))
        assert not accepts(backend, '{"next":{"next":1}}', json=json.dumps(node))

    def test_true_is_any_value(self, backend):
        assert accepts(backend, '[1,{"a":null}]', json="true")

    @pytest.mark.parametrize(
        "text", ['{"a":1}', '{ "a": 1 }', '{\n    "a": 1\n}', '{\r\n\t"a" : 1}']
    )
    def test_white_space_as_people_write_it(self, backend, text):
        assert accepts(backend, text, json_object=True)

    @pytest.mark.parametrize("text", ["{" + " " * 10 + "}", ' {"a":1}', '{"a":1} ', '{"a":"\t"}'])
    def test_white_space_without_end_is_not_allowed(self, backend, text):
        assert not accepts(backend, text, json_object=True)


bounds = st.integers(-120, 120) | st.sampled_from(
    [-2.5, 0.25, 0.1, 9.99, 100.75, 1e-5, -99999.99999, 1e15]
)
lengths = st.integers(0, 3)
few = st.dictionaries(st.sampled_from(["a", "b", "é", 'q"']), st.none(), max_size=3)
leaves = st.one_of(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"type": "number"}, {}]
    ),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        bounds,
        st.integers(1, 200),
    ),
    st.builds(
        lambda low, more: {"type": "number", "minimum": low, "maximum": low + more},
        bounds,
        st.integers(1, 99),
    ),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, bounds),
    st.builds(
        lambda low: {
            "type": "number",
            "exclusiveMinimum": round(low, 5),
            "exclusiveMaximum": round(low + 1e-5, 5),
        },
        st.floats(-9, 9),
    ),
    st.builds(lambda high: {"type": "number", "exclusiveMaximum": high}, bounds),
    st.builds(lambda high: {"type": "integer", "exclusiveMaximum": high}, bounds),
    st.builds(lambda step: {"type": "integer", "multipleOf": step}, st.integers(1, 60)),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        lengths,
        lengths,
    ),
    st.builds(
        lambda name: {"type": "string", "format": name},
        st.sampled_from(["date", "time", "ipv4", "uuid", "email"]),
    ),
    st.builds(
        lambda one: {"type": "string", "pattern": one},
        st.sampled_from([r"^\S+$", "a|^b", r"^[^a-z]{2}$", ".", r'^"\\$']),
    ),
    st.builds(
        lambda one: {"enum": one},
        st.lists(st.sampled_from([0, -1.5, "x\n", None, [1], {"k": True}]), min_size=1),
    ),
)
schemas = st.recursive(
    leaves,
    lambda part: st.one_of(
        st.builds(
            lambda named, wanted, low, most: {
                "type": "object",
                "properties": named,
                "required": sorted(named)[:wanted],
                "minProperties": min(low, len(named)),
                "maxProperties": max(most, wanted, low),
            },
            st.dictionaries(st.sampled_from(["a", "b", "é", 'q"']), part, max_size=4),
            lengths, lengths, lengths,
        ),
        st.builds(lambda others: {"type": "object", "additionalProperties": others}, part),
        st.builds(
            lambda first, low: {"prefixItems": first, "items": False, "minItems": min(low, len(first))},
            st.lists(part, max_size=3), lengths,
        ),
        st.builds(
            lambda rest, low, more: {"items": rest, "minItems": low, "maxItems": low + more}, part, lengths, lengths,
        ),
        st.builds(lambda options: {"anyOf": options}, st.lists(part, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(suppress_health_check=list(HealthCheck))
@given(schemas, st.integers(0, 1000))
def test_whatever_way_is_taken_the_answer_is_valid(backend, schema, seed):
    try:
        found = walked(backend, StructuredOutput(json=json.dumps(schema)), seed)
    except GrammarError:
        reject()  # nothing satisfies it
    if found is not None:
        value = json.loads(found)
        assert is_valid(value, schema), found


ALL_TEXTS = ["".join(chars) for count in range(5) for chars in product("xab", repeat=count)]


@pytest.mark.parametrize("is_json", [False, True])
@pytest.mark.parametrize(
    "pattern",
    ["a(xb+)?", "a(x+b)?", "(ab*)?x", "(ab{1,3})?x", "(a(b+x)?)?x", "((ab+)?x)?", "a(xb+){0,2}", "(a+|b|)x", "(|ab+)x"],
)  # fmt: skip
def test_optional_groups_with_loops(backend, pattern, is_json):
    """The library alone allows `ab` for the first of them."""
    spec = {"json": json.dumps({"type": "string", "pattern": f"^({pattern})$"})}
    spec = spec if is_json else {"regex": pattern}
    compiled = backend.compile(StructuredOutput(**spec))
    for text in ALL_TEXTS:
        matcher = compiled.matcher([END])
        tokens = tokens_of(f'"{text}"' if is_json else text)
        is_allowed = matcher.accept(tokens) == len(tokens) and matcher.inner.is_completed()
        assert is_allowed == bool(re.fullmatch(pattern, text)), text


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


class TestGrammars:
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
    def test_gbnf(self, backend, grammar, right, wrong):
        assert accepts(backend, right, grammar=grammar)
        assert not accepts(backend, wrong, grammar=grammar)

    @pytest.mark.parametrize(
        ("grammar", "right", "wrong"),
        [
            ('start: "<" NAME ">" start? "</>"\nNAME: /[a-z]{1,4}/', "<ab><c></></>", "<ab><c></>"),
            ('start: ("a".."c" | /\\d\\/?/)+ // %json', "a1/c", "d"),
            ('?start: x{2,3}\nx: "a"\n  | "b"', "aba", "a"),
        ],
    )
    def test_plain_lark(self, backend, grammar, right, wrong):
        assert accepts(backend, right, grammar=grammar)
        assert not accepts(backend, wrong, grammar=grammar)

    @pytest.mark.parametrize(
        "grammar",
        ["root ::= (", "root ::= x", "a ::= b", "start: foo", "start: (", 'root ::= "\\ud800"'],
    )
    def test_what_is_none_is_refused_in_one_line(self, backend, grammar):
        with pytest.raises(GrammarError) as caught:
            backend.compile(StructuredOutput(grammar=grammar))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 500


class TestRegex:
    @given(
        st.sampled_from(
            [
                r"a|ab", r"(a+)+b", r"[^\n]{1,3}", r"(ab|a)(c|bcd)", r"\d+(\.\d+)?", r"a{2,4}", r"^ab?$", r"a.c",
                r"(|a)b", r"[\d\-.]*", r"é|[а-я]+", "()",
            ]
        ),
        st.text("abcd1.\né-", max_size=6),
    )  # fmt: skip
    def test_allows_what_re_matches(self, backend, pattern, text):
        assert accepts(backend, text, regex=pattern) == bool(re.fullmatch(pattern, text))


class TestMasks:
    def test_a_special_token_is_no_text(self, backend):
        """xgrammar takes it for its name, and would allow it in a JSON string."""
        matcher = backend.compile(StructuredOutput(json='{"type": "string"}')).matcher([END])
        matcher.accept(tokens_of('"'))
        contract = TestContract()
        (allowed,) = contract.masks(backend, matcher)
        assert allowed <= set(PIECES.values())
        assert len(allowed) > 100

    def test_nothing_follows_the_end(self, backend):
        matcher = backend.compile(StructuredOutput(choice=("a",))).matcher([END])
        assert matcher.accept([*tokens_of("a"), END]) == 2
        assert TestContract().masks(backend, matcher) == [set()]
        assert matcher.accept(tokens_of("a")) == 0
        matcher.rollback(1)
        assert TestContract().masks(backend, matcher) == [{END}]

    def test_a_strange_array_is_filled_as_well(self, backend):
        matcher = backend.compile(StructuredOutput(choice=("a",))).matcher([END])
        wide = np.full((2, 2 * num_words(VOCAB_SIZE)), -1, np.int32)
        backend.fill_masks([matcher, matcher], wide[:, ::2])
        assert [allowed_ids(line).tolist() for line in wide[:, ::2].copy()] == [tokens_of("a")] * 2
        assert (wide[:, 1::2] == -1).all()

    def test_an_id_beyond_the_vocabulary_is_not_taken(self, backend):
        matcher = backend.compile(StructuredOutput(regex=".*")).matcher([END])
        assert matcher.accept([VOCAB_SIZE + 5]) == 0
