"""Calls as JSON objects with the function's name as their key. Front end."""

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
from tenonry_output_parsers.json_values import MAX_HELD, pass_arguments, short_string
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks

START = "<|tools_prefix|>"
END = "<|tools_suffix|>"
START_MARKS = check_marks(START)


class Apertus(ScanningParser):
    """`<|tools_prefix|>[{"name": {…}}, …]<|tools_suffix|>`."""

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (START, END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return START in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        more = '(", " call)*' if parallel else ""
        return lark(
            f"start: {literal(START + '[')} call {more} {literal(']' + END)}",
            *one_of(tools, "call", _object),
            *arguments_of(tools),
        )

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        known = any_arguments(tools)
        lines = [
            f'calls: "[" call (", " call)* {literal("]" + END)}',
            *one_of(known, "call", _object),
            *arguments_of(known),
        ]
        return text_and_calls(START, "calls", lines)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until(START_MARKS, self.text)):
            if (yield from self.attempt(START, self._calls())):
                yield from self.skip_to(END)

    def _calls(self) -> Steps[None]:
        source = self.source
        yield from source.spaces()
        yield from source.expect("[")
        while True:
            yield from source.spaces()
            yield from self._call()
            yield from source.spaces()
            if (yield from source.take()) != ",":
                return

    def _call(self) -> Steps[None]:
        source = self.source
        if not source.is_limited:
            source.limit(MAX_HELD)
        yield from source.expect("{")
        yield from source.spaces()
        name = yield from short_string(source)
        yield from source.spaces()
        yield from source.expect(":")
        yield from source.spaces()
        if (yield from source.need()) != "{":
            raise Malformed("arguments are an object")
        self.start_call(name)
        yield from pass_arguments(source, self.arguments)
        yield from source.spaces()
        yield from source.expect("}")
        self.end_call()


def _object(name: str, arguments: str) -> str:
    lead = f'{{"{name}": '
    return f'{literal(lead)} {arguments} "}}"'
