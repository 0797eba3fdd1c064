"""Grammars, in Lark's notation, of calls in a model's own format. Front end.

Markup of a format stands in them as literals. Where a tokenizer has it as a special token, which is no text,
`with_tokens` puts the token in its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.forced import call_schema

# As the schemas of `response_format` are read: white space is bounded, and no keyword is passed over.
OPTIONS = {"whitespace_pattern": r"( |\r?\n[ \t]{0,20})", "lenient": False}
JSON = "%json"
LAZY = "[lazy]"
ANY_TEXT = r"TEXT: /(.|\n)*/"


def lark(*lines: str) -> StructuredOutput:
    """The grammar of these rules. Raises RequestError for too much text."""
    return StructuredOutput(grammar="\n".join(lines))


def literal(text: str) -> str:
    """A text in a rule; nothing for no text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def json_rule(name: str, schema: Mapping[str, Any]) -> str:
    """A rule for values of a JSON schema, in one line."""
    whole = {**schema, "x-guidance": OPTIONS}
    return f"{name}: {JSON} {json.dumps(whole)}"


def with_tokens(grammar: str, tokens: Mapping[str, int]) -> str | None:
    """The same grammar with special tokens, by their markup, in the place of its literals.

    A rule with such a token is no single lexeme any more, and need not be: no text contains the token. None where
    markup stands within a longer literal.
    """
    lines = []
    for line in grammar.split("\n"):
        if JSON in line:
            lines.append(line)
            continue
        changed = line
        for markup, token_id in tokens.items():
            changed = changed.replace(literal(markup), f"<[{token_id}]>")
        if any(markup in changed for markup in tokens):
            return None
        if changed != line:
            changed = changed.replace(LAZY, "")
        lines.append(changed)
    return "\n".join(lines)


def any_arguments(tools: Sequence[Tool]) -> list[Tool]:
    """The tools as calls are bounded that the model may leave: of those that are not strict, the name only."""
    return [tool if tool.strict else Tool(tool.name) for tool in tools]


def text_and_calls(mark: str, calls: str, lines: Sequence[str]) -> StructuredOutput:
    """Text in which `calls`, a rule, follow each `mark`."""
    return lark(
        f"start: (head {calls})* tail",
        f"head{LAZY}: TEXT {literal(mark)}",
        "tail: TEXT",
        ANY_TEXT,
        *lines,
    )


def one_of(tools: Sequence[Tool], rule: str, form: Callable[[str, str], str]) -> list[str]:
    """`rule` for a call of one of the tools: `form` writes it, with the function's name and a rule of its arguments."""
    names = [f"{rule}_{place}" for place in range(len(tools))]
    lines = [f"{rule}: {' | '.join(names)}"]
    for place, tool in enumerate(tools):
        arguments = f"arguments_{place}"
        lines.append(f"{names[place]}: {form(tool.name, arguments)}")
    return lines


def arguments_of(tools: Sequence[Tool]) -> list[str]:
    """The rules of the arguments that `one_of` names, as JSON objects."""
    return [
        json_rule(f"arguments_{place}", {"type": "object", **tool.parameters})
        for place, tool in enumerate(tools)
    ]


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
        more = f"({literal(self.between)} call)*" if parallel else ""
        return lark(
            f"start: call {more}",
            f"call: {literal(self.begin)} one {literal(self.end)}",
            *self._objects(tools),
        )

    def allowed(self, tools: Sequence[Tool]) -> StructuredOutput:
        """Text, and calls in it; arguments of tools that are not strict may be any object."""
        rest = literal(self.begin.removeprefix(self.mark))
        known = any_arguments(tools)
        return text_and_calls(self.mark, f"{rest} one {literal(self.end)}", self._objects(known))

    def _objects(self, tools: Sequence[Tool]) -> list[str]:
        names = [f"call_{place}" for place in range(len(tools))]
        lines = [f"one: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            definitions: dict[str, Any] = {}
            schema = call_schema(tool, definitions, self.arguments)
            lines.append(json_rule(name, {**schema, "$defs": definitions}))
        return lines
