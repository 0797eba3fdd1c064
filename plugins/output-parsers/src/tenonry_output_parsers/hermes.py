"""Calls as JSON between `<tool_call>` tags. Front end."""

from __future__ import annotations

from typing import ClassVar

from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.json_calls import JsonCalls
from tenonry_output_parsers.text_input import check_marks

START = "<tool_call>"
END = "</tool_call>"


class Hermes(JsonCalls):
    """The format of Hermes 2 Pro, of Qwen 2.5 and Qwen 3, of Granite 4 and many others."""

    starts = check_marks(START)
    end = END
    markers: ClassVar[tuple[str, ...]] = (START, END)
    form = CallFormat(START, f"{START}\n", f"\n{END}", "\n")

    @classmethod
    def recognises(cls, template: str) -> bool:
        return START in template and "arguments" in template
