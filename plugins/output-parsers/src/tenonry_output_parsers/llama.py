"""Calls as bare JSON at the start of the answer, as Llama 3 and 4 write them. Front end."""

from __future__ import annotations

import re
from typing import ClassVar

from tenonry_output_parsers.call_grammar import CallFormat
from tenonry_output_parsers.json_calls import JsonCalls
from tenonry_output_parsers.text_input import Steps, check_marks

TAG = "<|python_tag|>"
CODE = "<|python_start|>"
CODE_END = "<|python_end|>"
_PRINTS_NAME = re.compile(r"""\{\s*\\?["']name\\?["']\s*:""")


class Llama(JsonCalls):
    """`{"name": …, "parameters": {…}}`, one object or several, behind a tag of code or none."""

    starts = check_marks(TAG, CODE)
    end = CODE_END
    markers: ClassVar[tuple[str, ...]] = (TAG, CODE, CODE_END)
    form = CallFormat("", "", "", "; ", "parameters")
    is_bare = True

    @classmethod
    def recognises(cls, template: str) -> bool:
        """Return True if a template shows calls as objects with a name; formats with markup are checked before."""
        return "tool_calls" in template and _PRINTS_NAME.search(template) is not None

    def calls(self) -> Steps[None]:
        yield from self.source.spaces()
        yield from self.source.accept(CODE_END, TAG)
        yield from super().calls()
