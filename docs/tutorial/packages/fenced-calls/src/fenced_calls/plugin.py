"""Output parser `fenced-calls`: tool calls as JSON in fenced blocks of a Markdown answer. API server."""

from __future__ import annotations

from tenonry_output_parsers.scanning import ScanningParser
from tenonry_output_parsers.text_input import Steps, check_marks

START = check_marks("```call")
END = "```"


class FencedCalls(ScanningParser):
    """Reads blocks such as ```` ```call {"name": "add", "arguments": {"a": 1}} ``` ````; all else is text."""

    interface_version = 1
    reads_calls = True

    def read(self) -> Steps[None]:
        if not self.context.tools:
            return
        while (yield from self.source.until(START, self.text)):
            if (yield from self.attempt(START[0], self.call())):
                yield from self.skip_to(END)

    def call(self) -> Steps[None]:
        """Read one call, behind its mark."""
        yield from self.source.spaces()
        yield from self.call_object()
