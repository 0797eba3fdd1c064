"""Calls as JSON between tags: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Steps, check_marks

START = "<tool_call>"
END = "</tool_call>"
START_MARKS = check_marks(START)
FORMAT = CallFormat(START, f"{START}\n", f"\n{END}", "\n")


class Hermes(ScanningParser):
    """The format of Hermes 2 Pro, of Qwen 2.5 and of Qwen 3."""

    reads_calls = True
    markers: ClassVar[tuple[str, ...]] = (START, END)

    @classmethod
    def recognises(cls, template: str) -> bool:
        return START in template and '"arguments"' in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        return FORMAT.demanded(tools, parallel=parallel)

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        return FORMAT.allowed(tools)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        mark = ""
        while mark == START or (yield from self.source.until(START_MARKS, self.text)):
            mark = ""
            if (yield from self.attempt(START, self._call())):
                mark = yield from self.skip_to(END, START)

    def _call(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.call_object()
