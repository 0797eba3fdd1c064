"""Calls of an answer that a grammar forces to be a JSON list of them. Front end."""

from __future__ import annotations

from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Steps


class BareCalls(ScanningParser):
    """`[{"name": …, "arguments": {…}}, …]`, the form that the server requires when a request demands calls."""

    reads_calls = True

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        yield from self.attempt("", self._calls())

    def _calls(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.call_list()
