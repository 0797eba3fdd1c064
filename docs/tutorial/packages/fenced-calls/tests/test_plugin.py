"""The conformance suite of output parsers, with answers of this format."""

from __future__ import annotations

from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_testkit.output_parser import Answer, OutputParserContract

from fenced_calls.plugin import FencedCalls

CALL = '```call\n{"name": "add", "arguments": {"a": 1}}\n```'
ADD = (CallStart("add"), CallArguments('{"a": 1}'), CallEnd())
PYTHON = "Run this:\n```python\nprint(1)\n```"


class TestFencedCalls(OutputParserContract):
    output_parser = FencedCalls
    answers = (
        Answer(f"I add.\n{CALL}", (TextDelta("I add."), *ADD)),
        Answer(f"{CALL}\n{CALL}\nDone.", (*ADD, *ADD, TextDelta("Done."))),
        Answer(PYTHON, (TextDelta(PYTHON),)),
        Answer("```call\nnobody\n```", (TextDelta("```call\nnobody\n```"),)),
    )
