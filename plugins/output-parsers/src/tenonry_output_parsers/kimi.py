"""Calls of Kimi's models, whose ids hold the function's name. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import arguments_of, literal, one_of
from tenonry_output_parsers.call_section import CallSection
from tenonry_output_parsers.json_values import pass_value
from tenonry_output_parsers.text_input import Steps, check_marks

CALLS = "<|tool_calls_section_begin|>"
CALLS_END = "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
CALL_END = "<|tool_call_end|>"
FUNCTIONS = "functions."
ARGUMENT_MARKS = check_marks(ARGUMENTS)
MAX_ID = 128


class Kimi(CallSection):
    """`…call begin…functions.NAME:0…argument begin…{…}…call end…`, in a section of calls.

    The template prints ids as they are, so clients get those that the model writes.
    """

    section = (CALLS, CALLS_END)
    call = (CALL, CALL_END)
    markers: ClassVar[tuple[str, ...]] = (CALLS, CALLS_END, CALL, ARGUMENTS, CALL_END)

    @classmethod
    def forms(cls, tools: Sequence[Tool], *, parallel: bool) -> list[str]:
        more = "call*" if parallel else ""
        return [
            f"calls: call {more} {literal(CALLS_END)}",
            f"call: {literal(CALL)} one {literal(CALL_END)}",
            *one_of(tools, "one", _one),
            *arguments_of(tools),
        ]

    def read_call(self) -> Steps[None]:
        source = self.source
        head, _ = yield from source.collect(ARGUMENT_MARKS)
        call_id = head.strip()
        name, _, place = call_id.rpartition(":")
        if not name or not place.isdecimal():
            name = call_id
        self.start_call(name.removeprefix(FUNCTIONS), call_id if len(call_id) <= MAX_ID else "")
        yield from source.spaces()
        yield from pass_value(source, self.arguments)
        self.end_call()


def _one(name: str, arguments: str) -> str:
    lead = literal(f"{FUNCTIONS}{name}:")
    return f"{lead} /[0-9]{{1,3}}/ {literal(ARGUMENTS)} {arguments}"
