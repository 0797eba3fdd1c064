"""The conformance suite over the formats of Gemma's models."""

from __future__ import annotations

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_testkit.output_parser import TOOLS, Answer, OutputParserContract


def call(name: str, arguments: str) -> tuple:
    return (CallStart(name), CallArguments(arguments), CallEnd())


ADD = call("add", '{"a": 1, "b": 2}')


class TestGemma(OutputParserContract):
    output_parser = "gemma"
    tools = (*TOOLS, Tool("look"))
    answers = (
        Answer(
            'So.<|tool_call>call:add{a:1,b:2}<tool_call|><|tool_call>call:say{text:<|"|>a "b" },\n<|"|>}'
            "<tool_call|>Done.",
            (
                TextDelta("So."),
                *ADD,
                *call("say", '{"text": "a \\"b\\" },\\n"}'),
                TextDelta("Done."),
            ),
        ),
        Answer(
            '<|tool_call>call:look{x:[1.5,true,<|"|>y<|"|>],<|"|>k k<|"|>:{a:null,"b":"c\\n"}}<tool_call|>',
            call("look", '{"x": [1.5, true, "y"], "k k": {"a": null, "b": "c\\n"}}'),
        ),
        Answer("<|tool_call>call:look{}<tool_call|>", call("look", "{}")),
        Answer("<|tool_call>look{ a : 1 , }<tool_call|>", call("look", '{"a": 1}')),
        Answer("<|tool_call>none", (TextDelta("<|tool_call>none"),)),
    )

    def test_a_broken_value_ends_the_call(self):
        events = self.read(["<|tool_call>call:look{z:}<tool_call|>"])
        expected = [CallStart("look"), CallArguments('{"z": '), CallEnd()]
        assert events == expected


class TestFunctionGemma(OutputParserContract):
    output_parser = "functiongemma"
    answers = (
        Answer(
            "<start_function_call>call:say{text:<escape>x<escape>}<end_function_call>"
            "<start_function_call>call:add{a:1,b:2}<end_function_call>",
            (*call("say", '{"text": "x"}'), *ADD),
        ),
    )
    effort = 0.4


class TestGemmaThink(OutputParserContract):
    output_parser = "gemma-think"
    answers = (
        Answer("<|channel>thought\nHm.<channel|>Yes.", (ReasoningDelta("Hm."), TextDelta("Yes."))),
        Answer("<|channel>thought\n<channel|>Yes.", (TextDelta("Yes."),)),
        Answer("<|channel> is a tag", (TextDelta("<|channel> is a tag"),)),
    )
    effort = 0.4
