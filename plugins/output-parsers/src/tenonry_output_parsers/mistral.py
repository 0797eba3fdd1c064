"""Calls after `[TOOL_CALLS]`, in the two forms of Mistral's tokenizers. Front end."""

from __future__ import annotations

import re
import secrets
import string
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

START = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"
START_MARKS = check_marks(START)
ARGUMENT_MARKS = check_marks(ARGUMENTS)
_NAME_STOP = re.compile(r"[\[{]")
_ID_CHARS = string.ascii_letters + string.digits


class Mistral(ScanningParser):
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call.

    Templates of these models take ids of nine letters and digits only.
    """

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (START, ARGUMENTS, CALL_ID)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return START in template

    @classmethod
    def new_call_id(cls) -> str:
        return "".join(secrets.choice(_ID_CHARS) for _ in range(9))

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        more = f"({literal(START)} named)*" if parallel else ""
        return lark(
            f"start: {literal(START)} (list | named {more})", *_forms(tools, parallel=parallel)
        )

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        lines = _forms(any_arguments(tools), parallel=True)
        return text_and_calls(START, "(list | named)", lines)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until(START_MARKS, self.text)):
            yield from self.attempt(START, self._calls())

    def _calls(self) -> Steps[None]:
        yield from self.source.spaces()
        first = yield from self.source.need()
        if first == "[":
            yield from self.call_list()
        elif first == "{":
            yield from self.call_object()
        else:
            yield from self._named()

    def _named(self) -> Steps[None]:
        name = yield from self._name()
        if (yield from self.source.need()) == "[":
            mark = yield from self.source.accept(ARGUMENTS, CALL_ID)
            if mark == CALL_ID:
                yield from self.source.collect(ARGUMENT_MARKS)
            elif not mark:
                raise Malformed("a name is followed by its arguments")
        self.start_call(name.strip())
        yield from self.source.spaces()
        yield from pass_value(self.source, self.arguments)
        self.end_call()

    def _name(self) -> Steps[str]:
        pieces = []
        while True:
            pieces.append(self.source.before(_NAME_STOP))
            if (yield from self.source.need()) in "[{":
                return "".join(pieces)


def _forms(tools: Sequence[Tool], *, parallel: bool) -> list[str]:
    """Both forms of calls; the model uses the one of its tokenizer."""
    more = '(", " object)*' if parallel else ""
    return [
        f'list: "[" object {more} "]"',
        *one_of(tools, "object", _object),
        *one_of(tools, "named", _named),
        *arguments_of(tools),
    ]


def _object(name: str, arguments: str) -> str:
    lead = f'{{"name": "{name}", "arguments": '
    return f'{literal(lead)} {arguments} "}}"'


def _named(name: str, arguments: str) -> str:
    return f"{literal(name)} {literal(ARGUMENTS)} {arguments}"
