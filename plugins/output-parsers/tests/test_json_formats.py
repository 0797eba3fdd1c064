"""The conformance suite over formats of calls that are JSON between marks."""

from __future__ import annotations

from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_testkit.output_parser import Answer, OutputParserContract

ADD = (CallStart("add"), CallArguments('{"a": 1, "b": 2}'), CallEnd())
SAY = (CallStart("say"), CallArguments('{"text": "]}<"}'), CallEnd())
ADD_JSON = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
SAY_JSON = '{"name": "say", "arguments": {"text": "]}<"}}'


class TestToolCalls(OutputParserContract):
    output_parser = "tool-calls"
    answers = (
        Answer(
            f"So.\n<tool_calls>[{ADD_JSON}, {SAY_JSON}]</tool_calls>\nDone.",
            (TextDelta("So."), *ADD, *SAY, TextDelta("Done.")),
        ),
        Answer(f"<tool_calls>\n{ADD_JSON}\n{SAY_JSON}\n</tool_calls>", (*ADD, *SAY)),
        Answer(f"<tool_calls>[\n    {ADD_JSON},\n]</tool_calls>!", (*ADD, TextDelta("!"))),
        Answer("<tool_calls>[]</tool_calls>", (TextDelta("<tool_calls>[]</tool_calls>"),)),
        Answer(f"<tool_calls>{ADD_JSON}, and so on", (*ADD, TextDelta(", and so on"))),
    )


class TestNemotron(OutputParserContract):
    output_parser = "nemotron"
    answers = (Answer(f"<TOOLCALL>[{ADD_JSON}, {SAY_JSON}]</TOOLCALL>\n", (*ADD, *SAY)),)
    effort = 0.3


class TestGranite(OutputParserContract):
    output_parser = "granite"
    answers = (
        Answer(f"<|tool_call|>[{ADD_JSON}, {SAY_JSON}]", (*ADD, *SAY)),
        Answer(f"<tool_call>[{ADD_JSON}]", ADD),
        Answer("a <|tool_call|> tag", (TextDelta("a <|tool_call|> tag"),)),
    )
    effort = 0.5


class TestPhi(OutputParserContract):
    output_parser = "phi"
    answers = (Answer(f"<|tool_call|>[{ADD_JSON}]<|/tool_call|>", ADD),)
    effort = 0.3


class TestFunctools(OutputParserContract):
    output_parser = "functools"
    answers = (
        Answer(f"I add. functools[{ADD_JSON}, {SAY_JSON}]", (TextDelta("I add."), *ADD, *SAY)),
        Answer(f"{ADD_JSON},\n{SAY_JSON}", (*ADD, *SAY)),
        Answer('{"name": "Ann"}', (TextDelta('{"name": "Ann"}'),)),
    )
    effort = 0.5


class TestGraniteCode(OutputParserContract):
    output_parser = "granite-code"
    answers = (Answer(f"<function_call> {ADD_JSON}\n<function_call> {SAY_JSON}", (*ADD, *SAY)),)
    effort = 0.3


class TestInternLm(OutputParserContract):
    output_parser = "internlm"
    answers = (
        Answer(
            "I add.<|action_start|><|plugin|>\n"
            '{"name": "add", "parameters": {"a": 1, "b": 2}}<|action_end|>\n',
            (TextDelta("I add."), *ADD),
        ),
    )
    effort = 0.3


class TestGigaChat(OutputParserContract):
    output_parser = "gigachat"
    answers = (
        Answer(f"So.\n\nfunction call<|role_sep|>\n{ADD_JSON}", (TextDelta("So."), *ADD)),
        Answer(f"<|function_call|>{SAY_JSON}", SAY),
        Answer("a function call", (TextDelta("a function call"),)),
    )
    effort = 0.5


class TestApertus(OutputParserContract):
    output_parser = "apertus"
    answers = (
        Answer(
            '<|tools_prefix|>[{"add": {"a": 1, "b": 2}}, {"say": {"text": "]}<"}}]<|tools_suffix|>!',
            (*ADD, *SAY, TextDelta("!")),
        ),
        Answer("<|tools_prefix|>[1]", (TextDelta("<|tools_prefix|>[1]"),)),
    )
    effort = 0.5


class TestLlama4(OutputParserContract):
    output_parser = "llama"
    answers = (
        Answer(
            '<|python_start|>{"name": "add", "parameters": {"a": 1, "b": 2}}<|python_end|>', ADD
        ),
        Answer(
            '<|python_start|><|python_end|>{"name": "add", "parameters": {"a": 1, "b": 2}}', ADD
        ),
        Answer(f"[{ADD_JSON}, {SAY_JSON}]", (*ADD, *SAY)),
        Answer("[1, 2]", (TextDelta("[1, 2]"),)),
    )
    effort = 0.5
