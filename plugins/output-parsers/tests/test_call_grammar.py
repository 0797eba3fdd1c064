"""Grammars of calls in a model's own format: what they admit, the parser reads as the call that was meant."""

from __future__ import annotations

import functools
import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_grammar_llguidance.backend import LLGuidance
from tenonry_grammars.base import GrammarContext
from tenonry_grammars.bits import allowed_ids
from tenonry_output_parsers.base import ParserContext, Tool
from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_output_parsers.hermes import Hermes
from tenonry_output_parsers.llama import Llama
from tenonry_testkit.fakes.tokenizer import END, PIECES, TOKENIZER_JSON
from tenonry_testkit.grammar import tokens_of

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "maximum": 99},
        "b": {"$ref": "#/$defs/b"},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "string", "maxLength": 6}},
}
FLAG = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "additionalProperties": False,
}
TOOLS = (Tool("add", ADD, strict=True), Tool("flag", FLAG, strict=True))
SCHEMAS = {"add": ADD, "flag": FLAG}
PARSERS = [Hermes, Llama]
TEXTS = {token: piece for piece, token in PIECES.items()}
MOST_TOKENS = 250
BACKEND = LLGuidance(GrammarContext(TOKENIZER_JSON, END + 2, (END,)))


@functools.cache
def demanded(parser, parallel):
    return compiled(parser.grammar(TOOLS, parallel=parallel))


def compiled(spec):
    return BACKEND.compile(spec)


def allowed(matcher):
    mask = np.zeros((1, BACKEND.context.num_words), np.int32)
    BACKEND.fill_masks([matcher], mask)
    return set(allowed_ids(mask[0]).tolist())


def walk(grammar, seed):
    """A text that the grammar admits whole, along a random way; None for one that does not end."""
    chance = random.Random(seed)
    matcher = grammar.matcher((END,))
    found = b""
    for _ in range(MOST_TOKENS):
        ids = allowed(matcher)
        if END in ids and (len(ids) == 1 or chance.random() < 0.4):
            return found.decode(errors="replace")
        token = chance.choice(sorted(ids - {END}))
        assert matcher.accept([token]) == 1
        found += TEXTS[token]
    return None


def admits(grammar, text):
    matcher = grammar.matcher((END,))
    tokens = tokens_of(text)
    return matcher.accept(tokens) == len(tokens) and END in allowed(matcher)


def read(parser, text):
    reader = parser(ParserContext(TOOLS))
    return [*reader.feed(text, ()), *reader.close()]


def calls_of(events):
    """(name, arguments) of each call; nothing else may be among the events."""
    calls = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append([event.name, ""])
        elif isinstance(event, CallArguments):
            calls[-1][1] += event.text
        else:
            assert isinstance(event, CallEnd), event
    return calls


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("parser", PARSERS)
def test_what_is_admitted_is_read_as_calls_that_obey(parser, parallel):
    grammar = demanded(parser, parallel)
    numbers = set()
    for seed in range(16):
        text = walk(grammar, seed)
        if text is None:
            continue
        calls = calls_of(read(parser, text))
        numbers.add(len(calls))
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert 1 in numbers
    assert 0 not in numbers
    assert (max(numbers) > 1) is parallel


@settings(max_examples=15, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=3),
    word=st.text('ab <>é🦊"\\/{}', max_size=6),
)
@pytest.mark.parametrize(
    ("parser", "form"),
    [
        (Hermes, '<tool_call>\n{{"name": "add", "arguments": {}}}\n</tool_call>'),
        (Llama, '{{"name": "add", "parameters": {}}}'),
    ],
)
def test_calls_as_the_model_writes_them_are_admitted(parser, form, numbers, word):
    meant = [{"a": number, "b": word} for number in numbers]
    texts = [form.format(json.dumps(arguments, ensure_ascii=False)) for arguments in meant]
    text = ("\n" if parser is Hermes else "; ").join(texts)
    assert admits(demanded(parser, True), text)
    assert admits(demanded(parser, False), text) is (len(numbers) == 1)
    calls = calls_of(read(parser, text))
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("add", arguments) for arguments in meant
    ]


CALL = '<tool_call>\n{"name": "flag", "arguments": {"on": true}}\n</tool_call>'


class TestStrict:
    grammar = compiled(Hermes.strict_grammar((*TOOLS, Tool("free", ADD))))

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("", True),
            ("No call, and <b>no</b>\n\n tag.", True),
            (CALL, True),
            (f"I call.\n{CALL}\nand again {CALL} so.", True),
            (CALL.replace("true", "1"), False),
            (CALL.replace("flag", "sub"), False),
            ("a <tool_call> is a tag", False),
            (f"{CALL}\n{CALL.replace('true', '7')}", False),
            (CALL.replace("flag", "free"), True),
        ],
    )
    def test_text_or_calls_that_obey(self, text, expected):
        assert admits(self.grammar, text) is expected

    def test_a_format_without_a_mark_has_none(self):
        assert Llama.strict_grammar(TOOLS) is None

    def test_text_stays_text(self):
        assert read(Hermes, "I think <not>.") == [TextDelta("I think <not>.")]
