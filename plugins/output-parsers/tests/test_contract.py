"""The conformance suite of output parsers over each of them."""

from __future__ import annotations

from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_testkit.output_parser import Answer, OutputParserContract


def call(name: str, arguments: str) -> tuple:
    return (CallStart(name), CallArguments(arguments), CallEnd())


ADD = call("add", '{"a": 1, "b": 2}')
TRICKY = '{"text": "a </tool_call> \\"} {\\\\"}'


class TestThink(OutputParserContract):
    output_parser = "think"
    answers = (
        Answer("<think>\nhm <b> \n</think>\n\nyes", (ReasoningDelta("hm <b>"), TextDelta("yes"))),
        Answer("<think>\n\n</think>\n\nyes ", (TextDelta("yes "),)),
        Answer("\n <think>so</think>", (ReasoningDelta("so"),)),
        Answer("the tag <think> is a tag", (TextDelta("the tag <think> is a tag"),)),
        Answer("hm\n</think>yes", (ReasoningDelta("hm"), TextDelta("yes")), "<think>\n"),
        Answer("<think>hm</think>yes", (ReasoningDelta("hm"), TextDelta("yes")), "<think>\n"),
        Answer("<think>cut of", (ReasoningDelta("cut of"),)),
        Answer("<thin", (TextDelta("<thin"),)),
    )


class TestMistralThink(OutputParserContract):
    output_parser = "mistral-think"
    answers = (Answer("[THINK]hm[/THINK]yes", (ReasoningDelta("hm"), TextDelta("yes"))),)
    effort = 0.3


class TestSeedThink(OutputParserContract):
    output_parser = "seed-think"
    answers = (Answer("<seed:think>hm</seed:think>yes", (ReasoningDelta("hm"), TextDelta("yes"))),)
    effort = 0.3


class TestHermes(OutputParserContract):
    output_parser = "hermes"
    answers = (
        Answer(
            'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
            (TextDelta("I add."), *ADD),
        ),
        Answer(
            '<tool_call>{"arguments": {"a": 1, "b": 2}, "id": [1], "name": "add"}</tool_call>\n'
            '<tool_call>\n{"name": "say", "arguments": ' + TRICKY + "}\n</tool_call>\nDone.",
            (*ADD, *call("say", TRICKY), TextDelta("Done.")),
        ),
        Answer(
            '<tool_call>{"name": "say", "arguments": "{\\"text\\": \\"\\u00e9\\ud83e\\udd8a\\"}"}</tool_call>',
            call("say", '{"text": "é🦊"}'),
        ),
        Answer('<tool_call>{"name": "add"}}</tool_call>!', (*call("add", "{}"), TextDelta("!"))),
        Answer('<tool_call>{"name": "add", "arguments": null}', call("add", "{}")),
        Answer(
            '<tool_call>{"name": "add", "arguments": {}}\n<tool_call>{"name": "say", "arguments": {}}</tool_call>',
            (*call("add", "{}"), *call("say", "{}")),
        ),
        Answer("a <tool_call> tag\n", (TextDelta("a <tool_call> tag\n"),)),
        Answer('<tool_call>{"no": "name"}', (TextDelta('<tool_call>{"no": "name"}'),)),
    )


class TestQwenCoder(OutputParserContract):
    output_parser = "qwen-coder"
    answers = (
        Answer(
            "I add.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
            "</function>\n</tool_call>",
            (TextDelta("I add."), *ADD),
        ),
        Answer(
            '<tool_call><function=say><parameter=text>\n\nif a < b:\n  "x"\n\n</parameter></function></tool_call>ok',
            (*call("say", '{"text": "\\nif a < b:\\n  \\"x\\"\\n"}'), TextDelta("ok")),
        ),
        Answer(
            "<function=say>\n<parameter=text>a<parameter=more>5</function>",
            call("say", '{"text": "a", "more": "5"}'),
        ),
        Answer(
            "<tool_call><function=add></function><function=add><parameter=a>no</parameter></function></tool_call>",
            (*call("add", "{}"), *call("add", '{"a": "no"}')),
        ),
        Answer("a <function=", (TextDelta("a <function="),)),
    )


class TestGlm(OutputParserContract):
    output_parser = "glm"
    answers = (
        Answer(
            "Well.\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n"
            "<arg_value>2</arg_value>\n</tool_call>",
            (TextDelta("Well."), *ADD),
        ),
        Answer(
            "<tool_call>say\n<arg_key>text</arg_key><arg_value>a <b> c</arg_value></tool_call>"
            "<tool_call>add</tool_call>",
            (*call("say", '{"text": "a <b> c"}'), *call("add", "{}")),
        ),
    )


class TestLlama(OutputParserContract):
    output_parser = "llama"
    answers = (
        Answer('{"name": "add", "parameters": {"a": 1, "b": 2}}', ADD),
        Answer(
            '<|python_tag|>{"type": "function", "name": "say", "parameters": {"text": "{"}}; '
            '{"name": "add", "parameters": {"a": 1, "b": 2}}',
            (*call("say", '{"text": "{"}'), *ADD),
        ),
        Answer('{"name": "Ann", "age": 7}', (TextDelta('{"name": "Ann", "age": 7}'),)),
        Answer("{not json} at all", (TextDelta("{not json} at all"),)),
    )


class TestMistral(OutputParserContract):
    output_parser = "mistral"
    answers = (
        Answer(
            'Yes.[TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": 2}, "id": "abcdefghi"}, '
            '{"name": "say", "arguments": {"text": "]"}}]',
            (TextDelta("Yes."), *ADD, *call("say", '{"text": "]"}')),
        ),
        Answer(
            '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]say[CALL_ID]abcdefghi[ARGS]{"text": "x"}',
            (*ADD, *call("say", '{"text": "x"}')),
        ),
        Answer('[TOOL_CALLS] add{"a": 1, "b": 2}', ADD),
        Answer('[TOOL_CALLS]{"name": "add", "arguments": {"a": 1, "b": 2}}', ADD),
        Answer("[TOOL_CALLS][not", (TextDelta("[TOOL_CALLS][not"),)),
    )


class TestDeepSeek(OutputParserContract):
    output_parser = "deepseek"
    answers = (
        Answer(
            "I add.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>"
            '{"a": 1, "b": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>say<｜tool▁sep｜>{"text": "x"}'
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            (TextDelta("I add."), *ADD, *call("say", '{"text": "x"}')),
        ),
        Answer(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
            '{"a": 1, "b": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>say\n```json\n'
            '{"text": "`"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            (*ADD, *call("say", '{"text": "`"}')),
        ),
        Answer("<｜tool▁calls▁begin｜>no call", (TextDelta("<｜tool▁calls▁begin｜>no call"),)),
    )


class TestHarmony(OutputParserContract):
    output_parser = "harmony"
    answers = (
        Answer(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            (ReasoningDelta("Hm."), TextDelta("Yes.")),
        ),
        Answer(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
            '<|constrain|>json<|message|>{"a": 1, "b": 2}<|call|>',
            (ReasoningDelta("Hm."), *ADD),
            "<|start|>assistant",
        ),
        Answer(
            "<|channel|>commentary<|message|>I say it.<|end|><|start|>assistant to=functions.say<|channel|>commentary "
            'json<|message|>{"text": "x"}<|call|><|start|>assistant<|channel|>commentary to=functions.add<|message|>'
            "<|call|>",
            (TextDelta("I say it."), *call("say", '{"text": "x"}'), *call("add", "{}")),
        ),
        Answer(
            ' to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": 2}<|call|>',
            ADD,
            "<|end|><|start|>assistant",
        ),
        Answer("today is to=day", (TextDelta("today is to=day"),), "<|start|>assistant"),
        Answer(
            "and so on.",
            (TextDelta("and so on."),),
            "<|start|>assistant<|channel|>final<|message|>So",
        ),
    )
