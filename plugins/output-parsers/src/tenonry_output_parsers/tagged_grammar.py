"""Grammars of calls with one tag per argument. Front end.

A text in tags has no quotes: it ends at the first end tag. So these grammars can enforce the schemas of numbers, flags,
texts and choices of texts, but not patterns, nor lists or objects that may contain a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool
from tenonry_output_parsers.call_grammar import LAZY, json_rule, lark, literal, text_and_calls
from tenonry_output_parsers.json_values import schema_types

NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "$schema"})
OBJECT = NOTES | {"type", "properties", "required", "additionalProperties"}
TEXT = NOTES | {"type", "enum", "const"}
NUMBERS = NOTES | {
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
}
SIMPLE = frozenset({"integer", "number", "boolean", "null"})
MARKUP = frozenset("<>\n\r\t ")


@dataclass(frozen=True, slots=True)
class TaggedFormat:
    """`mark`, a call, and the text between calls.

    `head` and `end` are those of a call, with the place `{name}`; `key` begins an argument, with the places `{key}`
    and, if markup distinguishes texts, `{is_text}`. `value_end` is the tag that ends its value, after `before_end`, and
    a line break follows. `others` is an expression of markup that ends a value, too; "" for none.
    """

    mark: str
    head: str
    end: str
    key: str
    before_end: str
    value_end: str
    others: str = ""

    def demanded(self, tools: Sequence[Tool], *, parallel: bool) -> StructuredOutput | None:
        """A call of one of the tools, or several; None if this format cannot enforce a schema."""
        if not all(map(_is_held, tools)):
            return None
        more = '("\\n" call)*' if parallel else ""
        return lark(f"start: call {more}", f"call: {literal(self.mark)} one", *self._calls(tools))

    def allowed(self, tools: Sequence[Tool]) -> StructuredOutput | None:
        """Text, and calls in it, with any arguments for tools that are not strict; None as `demanded`."""
        if not all(_is_held(tool) for tool in tools if tool.strict):
            return None
        end = literal(self.end)
        loose = f"loose{LAZY}: /(.|\\n)*/ {end}"
        lines = self._calls(tools, only_strict=True)
        return text_and_calls(self.mark, "one", [*lines, loose])

    def _calls(self, tools: Sequence[Tool], *, only_strict: bool = False) -> list[str]:
        names = [f"call_{place}" for place in range(len(tools))]
        lines = [f"one: {' | '.join(names)}", f"value{LAZY}: VALUE", self._value()]
        for name, tool in zip(names, tools, strict=True):
            head = literal(self.head.format(name=tool.name))
            if only_strict and not tool.strict:
                lines.append(f"{name}: {head} loose")
                continue
            arguments = self._arguments(name, tool, lines)
            lines.append(f"{name}: {head} {arguments} {literal(self.end)}")
        return lines

    def _value(self) -> str:
        """Any text up to the end of a value."""
        end = self.value_end.replace("/", r"\/")
        without = rf" & ~/(.|\n)*({self.others})(.|\n)*/" if self.others else ""
        return rf"VALUE: /(.|\n)*{end}/{without}"

    def _arguments(self, call: str, tool: Tool, lines: list[str]) -> str:
        """The arguments of a call in the order of its schema; `lines` gets the rules that they need."""
        required = tool.parameters.get("required", ())
        found = []
        for place, (key, schema) in enumerate(_properties(tool).items()):
            rule = f"{call}_{place}"
            value = self._value_of(rule, schema, lines)
            is_text = "true" if schema_types(schema) == {"string"} else "false"
            lead = literal(self.key.format(key=key, is_text=is_text))
            lines.append(f'{rule}: {lead} {value} "\\n"')
            found.append(rule if key in required else f"{rule}?")
        return " ".join(found)

    def _value_of(self, rule: str, schema: Mapping[str, Any], lines: list[str]) -> str:
        """One value with its end."""
        texts = _texts(schema)
        end = literal(self.before_end + self.value_end)
        if texts is not None:
            return f"({' | '.join(map(literal, texts))}) {end}"
        if schema_types(schema) == {"string"}:
            return "value"
        lines.append(json_rule(f"{rule}_value", schema))
        return f"{rule}_value {end}"


def _properties(tool: Tool) -> Mapping[str, Any]:
    found: Mapping[str, Any] = tool.parameters.get("properties", {})
    return found


def _texts(schema: Mapping[str, Any]) -> Sequence[str] | None:
    """The texts that a schema leaves to choose from; None for one that names none."""
    if schema_types(schema) != {"string"}:
        return None
    if "const" in schema:
        return [schema["const"]]
    texts: Sequence[str] | None = schema.get("enum")
    return texts


def _is_held(tool: Tool) -> bool:
    """Return True if this format can enforce the schema of the arguments."""
    parameters = tool.parameters
    properties = parameters.get("properties", {})
    required = parameters.get("required", [])
    if set(parameters) - OBJECT or parameters.get("type", "object") != "object":
        return False
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    if not all(isinstance(name, str) for name in required):
        return False
    return set(required) <= set(properties) and all(
        not MARKUP & set(key) and isinstance(schema, dict) and _is_held_value(schema)
        for key, schema in properties.items()
    )


def _is_held_value(schema: Mapping[str, Any]) -> bool:
    if not isinstance(schema.get("type"), str):
        return False
    if schema["type"] in SIMPLE:
        return not set(schema) - NUMBERS
    if schema["type"] != "string" or set(schema) - TEXT or {"enum", "const"} <= set(schema):
        return False
    return all(map(_is_plain, _texts(schema) or ["a"]))


def _is_plain(text: object) -> bool:
    """Return True if a text in tags is read back unchanged."""
    is_text = isinstance(text, str) and text == str(text).strip()
    return is_text and bool(text) and "<" not in str(text)
