"""Grammars, in Lark's notation, of calls in a model's own format. Front end.

For formats whose calls are JSON objects with something around each: what stands there must be text to the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.forced import call_schema

# As the schemas of `response_format` are read: white space is bounded, and no keyword is passed over.
OPTIONS = {"whitespace_pattern": r"( |\r?\n[ \t]{0,20})", "lenient": False}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`begin`, a JSON object with `name` and `arguments`, `end`; `between` stands between calls.

    `mark`: the beginning of `begin` that no text has. It is "" where a format has none.
    """

    mark: str
    begin: str
    end: str
    between: str
    arguments: str = "arguments"

    def demanded(self, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        """A call of one of the tools, or several where they may be parallel. Raises RequestError for too much text."""
        more = f"({_text(self.between)} call)*" if parallel else ""
        lines = [
            f"start: call {more}",
            f"call: {_text(self.begin)} one {_text(self.end)}",
        ]
        return _grammar([*lines, *self._objects(tools)])

    def allowed(self, tools: Sequence[Tool]) -> StructuredOutput:
        """Text, and calls in it; arguments of tools that are not strict may be any object."""
        rest = self.begin.removeprefix(self.mark)
        known = [tool if tool.strict else Tool(tool.name) for tool in tools]
        lines = [
            f"start: (head {_text(rest)} one {_text(self.end)})* tail",
            f"head[lazy]: TEXT {_text(self.mark)}",
            "tail: TEXT",
            r"TEXT: /(.|\n)*/",
        ]
        return _grammar([*lines, *self._objects(known)])

    def _objects(self, tools: Sequence[Tool]) -> list[str]:
        names = [f"call_{place}" for place in range(len(tools))]
        lines = [f"one: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            definitions: dict[str, Any] = {}
            schema = call_schema(tool, definitions, self.arguments)
            whole = {**schema, "$defs": definitions, "x-guidance": OPTIONS}
            lines.append(f"{name}: %json {json.dumps(whole)}")
        return lines


def _grammar(lines: Sequence[str]) -> StructuredOutput:
    return StructuredOutput(grammar="\n".join(lines))


def _text(text: str) -> str:
    """A literal; nothing for no text."""
    return json.dumps(text, ensure_ascii=False) if text else ""
