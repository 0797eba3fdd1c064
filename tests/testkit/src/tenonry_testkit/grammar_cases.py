"""Specifications for the suite of grammar backends, with their allowed texts. Test process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tenonry.sampling_params import StructuredOutput


class Case(NamedTuple):
    """A specification, complete texts that it allows, and a validity check of a text, computed independently."""

    spec: StructuredOutput
    texts: Sequence[str]
    is_right: Callable[[str], bool]


def _is_person(text: str) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "age"]
        and isinstance(value["name"], str)
        and isinstance(value["age"], int)
        and 0 <= value["age"] <= 120
    )


def _is_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def _is_nested(text: str) -> bool:
    half = len(text) // 2
    return text == "(" * half + "x" + ")" * half


PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
CHOICES = ("ab", "abc", 'no "way"\n', "naïve")
CASES = {
    "json": Case(
        StructuredOutput(json=PERSON), ['{"name":"a","age":7}', '{"name":"","age":120}'], _is_person
    ),
    "json_object": Case(StructuredOutput(json_object=True), ["{}", '{"a":[1,true]}'], _is_object),
    "regex": Case(
        StructuredOutput(regex=r"[a-c]{2,5}-\d\d?"),
        ["ab-1", "abcab-12"],
        lambda text: bool(re.fullmatch(r"[a-c]{2,5}-\d\d?", text)),
    ),
    "choice": Case(StructuredOutput(choice=CHOICES), CHOICES, lambda text: text in CHOICES),
    "lark": Case(
        StructuredOutput(grammar='start: "(" start ")" | "x"'), ["x", "((x))"], _is_nested
    ),
    "gbnf": Case(
        StructuredOutput(grammar='root ::= "(" root ")" | "x"'), ["x", "((x))"], _is_nested
    ),
}
# Forms of a specification with a single allowed text.
TEXT_FORMS: dict[str, Callable[[str], StructuredOutput]] = {
    "choice": lambda text: StructuredOutput(choice=(text,)),
    "regex": lambda text: StructuredOutput(regex=re.escape(text)),
    "json": lambda text: StructuredOutput(json=json.dumps({"const": text})),
    "lark": lambda text: StructuredOutput(grammar=f'start: {json.dumps(text)} ""'),
    "gbnf": lambda text: StructuredOutput(grammar=f"root ::= {json.dumps(text)}"),
}
WRONG = {
    "no JSON": StructuredOutput(json="{"),
    "unknown type": StructuredOutput(json='{"type": "strin"}'),
    "reference to nothing": StructuredOutput(json='{"$ref": "#/$defs/a"}'),
    "reference elsewhere": StructuredOutput(json='{"$ref": "http://example.com/a"}'),
    "open group": StructuredOutput(regex="(a"),
    "no grammar": StructuredOutput(grammar="hello"),
    "rule that is missing": StructuredOutput(grammar="start: foo"),
}
