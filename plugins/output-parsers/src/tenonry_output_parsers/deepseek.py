"""Calls of DeepSeek's models, between special tags. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import arguments_of, literal, one_of
from tenonry_output_parsers.call_section import CallSection
from tenonry_output_parsers.json_values import pass_value
from tenonry_output_parsers.text_input import Steps, check_marks

CALLS = "<｜tool▁calls▁begin｜>"
CALLS_END = "<｜tool▁calls▁end｜>"
CALL = "<｜tool▁call▁begin｜>"
CALL_END = "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCE = "```json"
SEPARATOR_MARKS = check_marks(SEPARATOR)
LINE_END = check_marks("\n")


class DeepSeek(CallSection):
    """`…call begin…name…sep…{…}…call end…` (V3.1), or `function…sep…name` and fenced JSON (V3, R1)."""

    section = (CALLS, CALLS_END)
    call = (CALL, CALL_END)
    markers: ClassVar[tuple[str, ...]] = (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR)

    @classmethod
    def forms(cls, tools: Sequence[Tool], *, parallel: bool) -> list[str]:
        """Calls as V3.1 writes them, and as V3 and R1 do."""
        more = '("\\n"? call)*' if parallel else ""
        return [
            f"calls: call {more} {literal(CALLS_END)}",
            f"call: {literal(CALL)} (plain | fenced) {literal(CALL_END)}",
            *one_of(tools, "plain", _plain),
            *one_of(tools, "fenced", _fenced),
            *arguments_of(tools),
        ]

    def read_call(self) -> Steps[None]:
        source = self.source
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


def _plain(name: str, arguments: str) -> str:
    return f"{literal(name)} {literal(SEPARATOR)} {arguments}"


def _fenced(name: str, arguments: str) -> str:
    lead = literal(f"{name}\n{FENCE}\n")
    end = literal("\n```")
    return f'"function" {literal(SEPARATOR)} {lead} {arguments} {end}'
