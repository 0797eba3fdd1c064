"""Calls of Kimi's models, whose ids hold the function's name. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import (
    any_arguments,
    arguments_of,
    lark,
    literal,
    one_of,
    text_and_calls,
)
from tenonry_output_parsers.json_values import pass_value
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks

CALLS = "<|tool_calls_section_begin|>"
CALLS_END = "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
CALL_END = "<|tool_call_end|>"
FUNCTIONS = "functions."
START_MARKS = check_marks(CALLS, CALL)
ARGUMENT_MARKS = check_marks(ARGUMENTS)
END_MARKS = check_marks(CALL_END, CALLS_END)
MAX_ID = 128


class Kimi(ScanningParser):
    """`…call begin…functions.NAME:0…argument begin…{…}…call end…`, in a section of calls.

    The template prints ids as they are, so clients get those that the model writes.
    """

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (CALLS, CALLS_END, CALL, ARGUMENTS, CALL_END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return CALLS in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        return lark(f"start: {literal(CALLS)} calls", *_forms(tools, parallel=parallel))

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        lines = _forms(any_arguments(tools), parallel=True)
        return text_and_calls(CALLS, "calls", lines)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while mark := (yield from self.source.until(START_MARKS, self.text)):
            while (yield from self.attempt(mark, self._call(has_tag=mark == CALL))):
                found = yield from self.skip_to(*END_MARKS)
                if found == CALLS_END:
                    break
                yield from self.source.spaces()
                mark = yield from self.source.accept(CALL, CALLS_END)
                if mark != CALL:
                    break

    def _call(self, *, has_tag: bool) -> Steps[None]:
        source = self.source
        if not has_tag:
            yield from source.spaces()
            if not (yield from source.accept(CALL)):
                raise Malformed("no call follows")
        head, _ = yield from source.collect(ARGUMENT_MARKS)
        call_id = head.strip()
        name, _, place = call_id.rpartition(":")
        if not name or not place.isdecimal():
            name = call_id
        self.start_call(name.removeprefix(FUNCTIONS), call_id if len(call_id) <= MAX_ID else "")
        yield from source.spaces()
        yield from pass_value(source, self.arguments)
        self.end_call()


def _forms(tools: Sequence[Tool], *, parallel: bool) -> list[str]:
    """Calls after the tag of their section."""
    more = "call*" if parallel else ""
    return [
        f"calls: call {more} {literal(CALLS_END)}",
        f"call: {literal(CALL)} one {literal(CALL_END)}",
        *one_of(tools, "one", _one),
        *arguments_of(tools),
    ]


def _one(name: str, arguments: str) -> str:
    lead = literal(f"{FUNCTIONS}{name}:")
    return f"{lead} /[0-9]{{1,3}}/ {literal(ARGUMENTS)} {arguments}"
