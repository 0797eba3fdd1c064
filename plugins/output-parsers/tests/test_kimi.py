"""The conformance suite over Kimi's calls, whose ids are those of the model."""

from __future__ import annotations

from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_output_parsers.kimi import MAX_ID
from tenonry_testkit.output_parser import Answer, OutputParserContract

SECTION = "<|tool_calls_section_begin|>"
SECTION_END = "<|tool_calls_section_end|>"


def written(call_id: str, arguments: str) -> str:
    return f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def call(name: str, call_id: str, arguments: str) -> tuple:
    return (CallStart(name, call_id), CallArguments(arguments), CallEnd())


LONG = "f" * (MAX_ID + 1)
ADD = call("add", "functions.add:0", '{"a": 1}')
SAY = call("say", "functions.say:1", '{"text": "<|"}')

ADD_TEXT = written("functions.add:0", '{"a": 1}')
SAY_TEXT = written("functions.say:1", '{"text": "<|"}')
BARE_TEXT = written("add", "{}")


class TestKimi(OutputParserContract):
    output_parser = "kimi"
    answers = (
        Answer(
            f"I add.{SECTION}{ADD_TEXT}{SAY_TEXT}{SECTION_END}", (TextDelta("I add."), *ADD, *SAY)
        ),
        Answer(written("functions.add:0", '{"a": 1}'), ADD),
        Answer(f"{SECTION}{BARE_TEXT}{SECTION_END}!", (*call("add", "add", "{}"), TextDelta("!"))),
        Answer(written("ns:add", "{}"), call("ns:add", "ns:add", "{}")),
        Answer(written(LONG, "{}"), call(LONG, "", "{}")),
        Answer(f"{SECTION}no call", (TextDelta(f"{SECTION}no call"),)),
    )
