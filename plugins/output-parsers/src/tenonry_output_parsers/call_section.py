"""Parsers of formats whose calls are in a section, each between its own tags. Front end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import any_arguments, lark, literal, text_and_calls
from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps, check_marks


class CallSection(ScanningParser):
    """`section begin, call begin … call end, …, section end`. `section` and `call`: first and last tag of each.

    The first tag of the section may be missing, and so may the last tag of a call.
    """

    reads_calls = True
    section: ClassVar[tuple[str, str]]
    call: ClassVar[tuple[str, str]]

    @classmethod
    @abstractmethod
    def forms(cls, tools: Sequence[Tool], *, parallel: bool) -> list[str]:
        """Rules of the grammar; `calls` is what follows the first tag of the section."""

    @abstractmethod
    def read_call(self) -> Steps[None]:
        """Read one call after its first tag."""

    @classmethod
    def recognises(cls, template: str) -> bool:
        return cls.section[0] in template

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        return lark(f"start: {literal(cls.section[0])} calls", *cls.forms(tools, parallel=parallel))

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput:
        lines = cls.forms(any_arguments(tools), parallel=True)
        return text_and_calls(cls.section[0], "calls", lines)

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        (begin, end), (call, call_end) = self.section, self.call
        starts, ends = check_marks(begin, call), check_marks(call_end, end)
        while mark := (yield from self.source.until(starts, self.text)):
            while (yield from self.attempt(mark, self._call_after(mark))):
                if (yield from self.skip_to(*ends)) == end:
                    break
                yield from self.source.spaces()
                mark = yield from self.source.accept(call, end)
                if mark != call:
                    break

    def _call_after(self, mark: str) -> Steps[None]:
        if mark != self.call[0]:
            yield from self.source.spaces()
            if not (yield from self.source.accept(self.call[0])):
                raise Malformed("no call follows")
        yield from self.read_call()
