"""Calls of Functionary's models, with the function's name before JSON. Front end."""

from __future__ import annotations

from collections.abc import Sequence

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
from tenonry_output_parsers.json_values import MAX_KEY, pass_value
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks

FUNCTION = "<function="
FUNCTION_END = "</function>"
RECIPIENT = ">>>"
EVERYBODY = "all"
ANGLE = check_marks(">")
LINE_END = check_marks("\n")


class Functionary(ScanningParser):
    """`<function=name>{…}</function>`: Functionary 3.1, and Llama 3.1 with functions of the user."""

    reads_calls = True

    @classmethod
    def recognises(cls, template: str) -> bool:
        return FUNCTION in template and "<parameter=" not in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        more = "call*" if parallel else ""
        return lark(f"start: call {more}", *one_of(tools, "call", _element), *arguments_of(tools))

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        known = any_arguments(tools)
        lines = [*one_of(known, "call", _rest_of_element), *arguments_of(known)]
        return text_and_calls(FUNCTION, "call", lines)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until((FUNCTION,), self.text)):
            if (yield from self.attempt(FUNCTION, self._call())):
                yield from self.skip_to(FUNCTION_END)

    def _call(self) -> Steps[None]:
        source = self.source
        name, _ = yield from source.collect(ANGLE)
        yield from source.spaces()
        if (yield from source.need()) != "{":
            raise Malformed("arguments are an object")
        self.start_call(name.strip())
        yield from pass_value(source, self.arguments)
        self.end_call()


class FunctionaryRecipients(ScanningParser):
    """`>>>name` and a line of JSON, or `>>>all` and text: Functionary 3.2, whose prompt ends with `>>>`."""

    reads_calls = True

    @classmethod
    def recognises(cls, template: str) -> bool:
        return f"{RECIPIENT}{EVERYBODY}" in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        more = f"({literal(RECIPIENT)} call)*" if parallel else ""
        return lark(f"start: call {more}", *one_of(tools, "call", _line), *arguments_of(tools))

    def read(self) -> Steps[None]:
        begins = self.context.prompt.rstrip().endswith(RECIPIENT)
        lead = "" if begins else (yield from self.source.accept(RECIPIENT))
        if not begins and not lead:
            lead = yield from self.source.until((RECIPIENT,), self.text)
        while begins or lead:
            begins = False
            yield from self._message(lead)
            lead = yield from self.source.until((RECIPIENT,), self.text)

    def _message(self, lead: str) -> Steps[None]:
        """Read the name of a recipient, and arguments if it is a function."""
        source = self.source
        source.limit(MAX_KEY)
        try:
            head, _ = yield from source.collect(LINE_END)
        except Malformed:
            self.text(lead + source.unlimit())
            return
        read = source.unlimit()
        if head.strip() == EVERYBODY:
            self.cut()
        elif self.context.tool(head.strip()) is None:
            self.text(lead + read)
        else:
            yield from self.attempt(lead + read, self._arguments(head.strip()))

    def _arguments(self, name: str) -> Steps[None]:
        yield from self.source.spaces()
        if (yield from self.source.need()) != "{":
            raise Malformed("arguments are an object")
        self.start_call(name)
        yield from pass_value(self.source, self.arguments)
        self.end_call()


def _element(name: str, arguments: str) -> str:
    return f"{literal(FUNCTION)} {_rest_of_element(name, arguments)}"


def _rest_of_element(name: str, arguments: str) -> str:
    return f"{literal(name + '>')} {arguments} {literal(FUNCTION_END)}"


def _line(name: str, arguments: str) -> str:
    return f"{literal(name + chr(10))} {arguments}"
