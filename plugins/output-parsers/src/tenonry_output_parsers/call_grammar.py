"""Grammars, in Lark's notation, of calls in a model's own format. Front end.

Markup of a format is included as literals. If a tokenizer has it as a special token, which is no text, `with_tokens`
substitutes the token.
"""

from __future__ import annotations

import json
import re
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
_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


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
    """The same grammar with special tokens, by their markup, instead of its literals.

    A rule with such a token is no single lexeme any more, and need not be: no text contains the token. None if markup
    is in an expression, or behind other text that ends a lazy lexeme.
    """
    if not tokens:
        return grammar
    markup = re.compile(f"({'|'.join(map(re.escape, sorted(tokens, key=len, reverse=True)))})")
    lines = []
    for line in grammar.split("\n"):
        changed = line
        if JSON not in line:
            changed = _LITERAL.sub(lambda found: _split(found[0], markup, tokens), line)
            if LAZY in line and changed != line:
                if _LITERAL.search(changed):
                    return None
                changed = changed.replace(LAZY, "")
            if markup.search(changed.replace(r"\/", "/")):
                return None
        lines.append(changed)
    return "\n".join(lines)


def _split(found: str, markup: re.Pattern[str], tokens: Mapping[str, int]) -> str:
    """A literal with tokens instead of the markup in it."""
    parts = markup.split(json.loads(found))
    if len(parts) == 1:
        return found
    return " ".join(
        f"<[{tokens[part]}]>" if part in tokens else literal(part) for part in parts if part
    )


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
    """JSON objects with a name and arguments: `begin`, an object, `end`, and `between` two calls.

    `mark`: the beginning of a call that no text has, "" if a format has none. `begin` and `end` enclose each call, or
    all of them if the format `is_list`. `name` and `arguments` are the keys of the object.
    """

    mark: str
    begin: str
    end: str
    between: str
    arguments: str = "arguments"
    name: str = "name"
    is_list: bool = False

    def demanded(self, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput:
        """A call of one of the tools, or several if they may be parallel. Raises RequestError for too much text."""
        more = f"({literal(self.between)} call)*" if parallel else ""
        begin, end = literal(self.begin), literal(self.end)
        rules = [f"start: call {more}", f"call: {begin} one {end}"]
        if self.is_list:
            rules = [f"start: {begin} call {more} {end}", "call: one"]
        return lark(*rules, *self._objects(tools))

    def allowed(self, tools: Sequence[Tool]) -> StructuredOutput:
        """Text, and calls in it; arguments of tools that are not strict may be any object."""
        more = f"({literal(self.between)} one)*" if self.is_list else ""
        calls = f"{literal(self.begin.removeprefix(self.mark))} one {more} {literal(self.end)}"
        return text_and_calls(self.mark, calls, self._objects(any_arguments(tools)))

    def _objects(self, tools: Sequence[Tool]) -> list[str]:
        names = [f"call_{place}" for place in range(len(tools))]
        lines = [f"one: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            definitions: dict[str, Any] = {}
            schema = call_schema(tool, definitions, arguments=self.arguments, name=self.name)
            lines.append(json_rule(name, {**schema, "$defs": definitions}))
        return lines
