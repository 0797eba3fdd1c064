"""Calls as JSON behind a mark, in the forms of several families of models. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.scanning import MAX_BETWEEN, ScanningParser
from tenonry_output_parsers.text_input import Malformed, Steps

SEPARATORS = (",", ";")


class JsonCalls(ScanningParser):
    """Objects such as `{"name": …, "arguments": {…}}`, or lists of them, between two marks.

    `starts`: the marks before calls; `end`: the mark behind them, "" if a format has none. `is_bare`: an answer may
    begin with calls without a mark. Then an object is a call only if it names a function that the request offers.
    """

    reads_calls = True
    starts: ClassVar[tuple[str, ...]]
    end: ClassVar[str] = ""
    form: ClassVar[CallFormat]
    is_bare: ClassVar[bool] = False

    @classmethod
    def recognises(cls, template: str) -> bool:
        return any(start in template for start in cls.starts)

    @classmethod
    def grammar(cls, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput | None:
        return cls.form.demanded(tools, parallel=parallel)

    @classmethod
    def strict_grammar(cls, tools: Sequence[Tool]) -> StructuredOutput | None:
        return cls.form.allowed(tools) if cls.form.mark else None

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        mark = ""
        if self.is_bare:
            mark = yield from self._calls_behind("")
        while mark := mark or (yield from self.source.until(self.starts, self.text)):
            mark = yield from self._calls_behind(mark)

    def _calls_behind(self, mark: str) -> Steps[str]:
        """Read the calls behind a mark; returns the mark of further ones, or ""."""
        has_calls = yield from self.attempt(mark, self.calls())
        if not has_calls:
            return ""
        while has_calls and (yield from self._is_object_next()):
            has_calls = yield from self.attempt("", self.calls())
        if not self.end:
            return ""
        found = yield from self.skip_to(self.end, *self.starts)
        return found if found in self.starts else ""

    def _is_object_next(self) -> Steps[bool]:
        """Return True if another object follows, perhaps after a separator; anything else read is text."""
        self.source.limit(MAX_BETWEEN)
        separator, following = "", ""
        try:
            yield from self.source.spaces()
            separator = yield from self.source.accept(*SEPARATORS)
            yield from self.source.spaces()
            following = yield from self.source.peek()
        except Malformed:
            separator = " "
        read = self.source.unlimit()
        if separator and following != "{":
            self.text(read)
        return following == "{"

    def calls(self) -> Steps[None]:
        """Read one object, or a list of them."""
        yield from self.source.spaces()
        if (yield from self.source.need()) == "[":
            yield from self.call_list()
        else:
            yield from self.call_object()

    def checked_name(self, name: str) -> str:
        if self.is_bare and self.context.tool(name) is None:
            raise Malformed(name)
        return name
