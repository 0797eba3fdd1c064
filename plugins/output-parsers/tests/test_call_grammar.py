"""Grammars of calls in a model's own format: the parser reads every admitted text as the intended call."""

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
from tenonry_output_parsers.call_grammar import with_tokens
from tenonry_output_parsers.deepseek import DeepSeek
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_output_parsers.harmony import Harmony
from tenonry_output_parsers.hermes import Hermes
from tenonry_output_parsers.llama import Llama
from tenonry_output_parsers.mistral import Mistral
from tenonry_output_parsers.tagged import Glm, QwenCoder
from tenonry_testkit.fakes.tokenizer import END, PIECES, TOKENIZER_JSON
from tenonry_testkit.grammar import tokens_of

ADD = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"$ref": "#/$defs/b"}},
    "required": ["a", "b"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "string", "maxLength": 6}},
}
FLAG = {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False}
SAY = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "to": {"type": "string", "enum": ["me", "you all"]},
        "text": {"type": "string", "description": "What to say."},
    },
    "required": ["n"],
    "additionalProperties": False,
}
SCHEMAS = {"add": ADD, "flag": FLAG, "say": SAY}
TOOLS = (Tool("add", ADD, strict=True), Tool("flag", FLAG, strict=True))
FLAT = (Tool("say", SAY, strict=True), Tool("flag", FLAG, strict=True))
OFFERED = {
    Hermes: TOOLS,
    Llama: TOOLS,
    Mistral: TOOLS,
    DeepSeek: TOOLS,
    Harmony: TOOLS,
    QwenCoder: FLAT,
    Glm: FLAT,
}
PARSERS = list(OFFERED)
ONE_CALL = {Harmony}  # a call ends an answer there
TEXTS = {token: piece for piece, token in PIECES.items()}
MOST_TOKENS = 250
BACKEND = LLGuidance(GrammarContext(TOKENIZER_JSON, END + 2, (END,)))


@functools.cache
def demanded(parser, parallel):
    return compiled(parser.grammar(OFFERED[parser], parallel=parallel))


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
    reader = parser(ParserContext(OFFERED[parser]))
    return [*reader.feed(text, ()), *reader.close()]


def calls_of(events):
    """(name, arguments) of each call; nothing else but reasoning may be among the events."""
    calls = []
    for event in events:
        if isinstance(event, ReasoningDelta):
            continue
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
    for seed in range(6):
        text = walk(grammar, seed)
        if text is None:
            continue
        calls = calls_of(read(parser, text))
        numbers.add(len(calls))
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    assert 1 in numbers
    assert 0 not in numbers
    assert max(numbers) == 1 or (parallel and parser not in ONE_CALL)


@settings(max_examples=10, deadline=None)
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


FORMS = [
    (Mistral, "[TOOL_CALLS]", "add[ARGS]{}", "[TOOL_CALLS]", ""),
    (Mistral, "[TOOL_CALLS][", '{{"name": "add", "arguments": {}}}', ", ", "]"),
    (
        DeepSeek,
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "",
        "<｜tool▁calls▁end｜>",
    ),
    (
        DeepSeek,
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{}\n```<｜tool▁call▁end｜>",
        "\n",
        "<｜tool▁calls▁end｜>",
    ),
]


@settings(max_examples=6, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 99), min_size=1, max_size=3),
    word=st.text('ab <>é🦊"\\/{}', max_size=6),
)
@pytest.mark.parametrize(("parser", "begin", "form", "between", "end"), FORMS)
def test_calls_behind_one_mark_are_admitted(parser, begin, form, between, end, numbers, word):
    meant = [{"a": number, "b": word} for number in numbers]
    calls = [form.format(json.dumps(arguments, ensure_ascii=False)) for arguments in meant]
    text = begin + between.join(calls) + end
    assert admits(demanded(parser, True), text)
    assert admits(demanded(parser, False), text) is (len(numbers) == 1)
    assert [json.loads(arguments) for _, arguments in calls_of(read(parser, text))] == meant


@settings(max_examples=10, deadline=None)
@given(
    number=st.integers(0, 99),
    to=st.sampled_from([None, "me", "you all"]),
    word=st.none() | st.text('ab <>é🦊"\\/{}=\n', max_size=9),
)
@pytest.mark.parametrize(
    ("parser", "begin", "form", "end"),
    [
        (
            QwenCoder,
            "<tool_call>\n<function=say>\n",
            "<parameter={}>\n{}\n</parameter>\n",
            "</function>\n</tool_call>",
        ),
        (
            Glm,
            "<tool_call>say\n",
            "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
            "</tool_call>",
        ),
    ],
)
def test_calls_in_tags_are_admitted_and_read_as_meant(parser, begin, form, end, number, to, word):
    if parser is Glm and word is not None:
        word = word.strip("\n")  # the format has no line breaks around a value
    given = {"n": number, "to": to, "text": word}
    meant = {key: value for key, value in given.items() if value is not None}
    text = begin + "".join(form.format(key, value) for key, value in meant.items()) + end
    assert admits(demanded(parser, False), text)
    assert not admits(demanded(parser, False), text.replace(str(number), "100", 1))
    ((name, arguments),) = calls_of(read(parser, text))
    assert (name, json.loads(arguments)) == ("say", meant)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "^a"}}},
        {"properties": {"a": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {"enum": [1, "a"]}}},
        {"properties": {"a": {"type": "string", "enum": ["</parameter>"]}}},
        {"properties": {"a": {"type": "string", "const": " a"}}},
        {"properties": {"a>": {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}}, "required": ["b"]},
        {"properties": {"a": {"type": "integer"}}, "required": [["a"]]},
        {"properties": {"a": True}},
        {"properties": []},
        {"minProperties": 1},
        {"type": "array"},
    ],
    ids=str,
)
def test_what_tags_cannot_hold_has_no_grammar_in_them(schema):
    """Then a demanded call is a JSON list, which can."""
    tool = Tool("f", schema, strict=True)
    for parser in (QwenCoder, Glm):
        assert parser.grammar([tool], parallel=False) is None
        assert parser.strict_grammar([tool]) is None
        assert parser.strict_grammar([Tool("f", schema)]) is not None


def test_reasoning_of_harmony_comes_before_the_call():
    text = (
        "<|channel|>analysis<|message|>Hm. <b>\n<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.flag <|constrain|>json<|message|>{"on": true}'
    )
    assert admits(demanded(Harmony, True), text)
    assert read(Harmony, text)[0] == ReasoningDelta("Hm. <b>")
    assert not admits(demanded(Harmony, True), text.replace("Hm", "<|channel|>final"))
    assert not admits(demanded(Harmony, True), "<|channel|>final<|message|>No.")


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


OTHER_FORMATS = {
    Mistral: ("[TOOL_CALLS]flag[ARGS]", '{"on": true}', ""),
    DeepSeek: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>flag<｜tool▁sep｜>",
        '{"on": true}',
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    QwenCoder: (
        "<tool_call>\n<function=flag>\n<parameter=on>\n",
        "true",
        "\n</parameter>\n</function>\n</tool_call>",
    ),
    Glm: (
        "<tool_call>flag\n<arg_key>on</arg_key>\n<arg_value>",
        "true",
        "</arg_value>\n</tool_call>",
    ),
}


@pytest.mark.parametrize("parser", OTHER_FORMATS)
def test_strict_calls_of_other_formats_stand_in_any_text(parser):
    begin, value, end = OTHER_FORMATS[parser]
    call = f"{begin}{value}{end}"
    grammar = compiled(parser.strict_grammar((*OFFERED[parser], Tool("free", ADD))))
    for text in ("", "No call, <b>\n\n", call, f"I call.\n{call}\nand {call} so."):
        assert admits(grammar, text), text
    for text in (call.replace("true", "1"), call.replace("flag", "sub"), f"{call}{begin}"):
        assert not admits(grammar, text), text
    free = call.replace("flag", "free")
    assert admits(grammar, free)


def test_strict_harmony_has_all_its_channels():
    grammar = compiled(Harmony.strict_grammar(TOOLS))
    turn = "<|end|><|start|>assistant"
    think = f"<|channel|>analysis<|message|>Hm.{turn}"
    say = f"<|channel|>commentary<|message|>I look.{turn}"
    call = '<|channel|>commentary to=functions.flag <|constrain|>json<|message|>{"on": true}'
    final = "<|channel|>final<|message|>So it is."
    for text in (final, think + final, think + say + call, call):
        assert admits(grammar, text), text
    for text in ("So.", think, say + call.replace("true", "0"), final + call):
        assert not admits(grammar, text), text


MARK = END + 1  # a special token of the tokenizer


def test_markup_that_is_a_special_token_is_that_token():
    spec = Mistral.strict_grammar(TOOLS)
    text = with_tokens(spec.grammar, {"[TOOL_CALLS]": MARK})
    matcher = BACKEND.compile(type(spec)(grammar=text)).matcher((END,))
    words = tokens_of("So [TOOL_CALLS]. ")
    assert matcher.accept(words) == len(words)  # the letters of the markup are text
    call = tokens_of('flag[ARGS]{"on": 1}')
    assert matcher.accept([MARK, *call]) == len(call) - 1
    schema = {"type": "string", "const": "[TOOL_CALLS]"}
    tool = Tool("f", {"properties": {"a": schema}})
    text = with_tokens(
        Mistral.grammar([tool], parallel=False).grammar, {"[TOOL_CALLS]": MARK, "[ARGS]": END}
    )
    assert json.dumps(schema) in text
    assert text.startswith(f"start: <[{MARK}]>")


def test_markup_within_a_longer_literal_cannot_be_a_token():
    spec = QwenCoder.grammar(FLAT, parallel=False)
    assert with_tokens(spec.grammar, {"</tool_call>": MARK}) is None
    assert with_tokens(spec.grammar, {}) == spec.grammar
