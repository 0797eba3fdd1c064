"""Calls of DeepSeek's models, between tags of their own. Front end."""

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

CALLS = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```json"
START_MARKS = check_marks(CALLS, CALL)
SEPARATOR_MARKS = check_marks(SEPARATOR)
CALL_END_MARKS = check_marks(CALL_END)
LINE_END = check_marks("\n")


class DeepSeek(ScanningParser):
    """`…call begin…name…sep…{…}…call end…` (V3.1), or `function…sep…name` and fenced JSON (V3, R1)."""

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR)

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
                yield from self.skip_to(*CALL_END_MARKS)
                mark = yield from self._next()
                if mark != CALL:
                    break

    def _next(self) -> Steps[str]:
        """The tag after a call, if there is one."""
        yield from self.source.spaces()
        return (yield from self.source.accept(CALL, CALLS_END))

    def _call(self, *, has_tag: bool) -> Steps[None]:
        source = self.source
        if not has_tag:
            yield from source.spaces()
            if not (yield from source.accept(CALL)):
                raise Malformed("no call follows")
        yield from source.spaces()
        if (yield from source.need()) == "{":
            yield from self.call_object()
            return
        head, _ = yield from source.collect(SEPARATOR_MARKS)
        name = head.strip()
        yield from source.spaces()
        if name == "function" and (yield from source.need()) not in "{`":
            name, _ = yield from source.collect(LINE_END)
        yield from source.spaces()
        yield from source.accept(FENCE)
        yield from source.spaces()
        self.start_call(name.strip())
        yield from pass_value(source, self.arguments)
        self.end_call()


def _forms(tools: Sequence[Tool], *, parallel: bool) -> list[str]:
    """Calls after their first tag, as V3.1 writes them and as V3 and R1 do."""
    more = '("\\n"? call)*' if parallel else ""
    return [
        f"calls: call {more} {literal(CALLS_END)}",
        f"call: {literal(CALL)} (plain | fenced) {literal(CALL_END)}",
        *one_of(tools, "plain", _plain),
        *one_of(tools, "fenced", _fenced),
        *arguments_of(tools),
    ]


def _plain(name: str, arguments: str) -> str:
    return f"{literal(name)} {literal(SEPARATOR)} {arguments}"


def _fenced(name: str, arguments: str) -> str:
    lead = literal(f"{name}\n{FENCE}\n")
    end = literal("\n```")
    return f'"function" {literal(SEPARATOR)} {lead} {arguments} {end}'
