"""Schema of an answer to a request that demands calls: a JSON list of them, for any model. Front end.

Parsers whose format a grammar can describe override it with `OutputParser.grammar`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenonry.sampling_params import StructuredOutput
from tenonry_output_parsers.base import Tool

ANY_OBJECT: dict[str, Any] = {"type": "object"}


def forced_calls(
    tools: Sequence[Tool], *, parallel: bool, start_after: tuple[int, ...] = ()
) -> StructuredOutput:
    """One call of one of the tools, or several if they may be parallel; `BareCalls` reads it.

    Raises RequestError for schemas that are too large together.
    """
    definitions: dict[str, Any] = {}
    forms = [call_schema(tool, definitions) for tool in tools]
    schema: dict[str, Any] = {
        "type": "array",
        "items": forms[0] if len(forms) == 1 else {"anyOf": forms},
        "minItems": 1,
    }
    if not parallel:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return StructuredOutput(json=json.dumps(schema), start_after=start_after)


def call_schema(
    tool: Tool, definitions: dict[str, Any], *, arguments: str = "arguments", name: str = "name"
) -> dict[str, Any]:
    """Schema of one call, with these two keys; recursive parameters are moved to `definitions`."""
    parameters = dict(tool.parameters) or ANY_OBJECT
    if has_references(parameters):
        place = f"#/$defs/{len(definitions)}"
        definitions[str(len(definitions))] = moved(parameters, place)
        parameters = {"$ref": place}
    return {
        "type": "object",
        "properties": {name: {"const": tool.name}, arguments: parameters},
        "required": [name, arguments],
        "additionalProperties": False,
    }


def has_references(schema: Any) -> bool:
    """Return True if a schema refers to a part of itself."""
    if isinstance(schema, dict):
        return "$ref" in schema or any(map(has_references, schema.values()))
    return isinstance(schema, list) and any(map(has_references, schema))


def moved(schema: Any, place: str) -> Any:
    """A schema with its references adjusted to its new place `place`, a JSON pointer with `#`."""
    if isinstance(schema, list):
        return [moved(entry, place) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: moved(value, place) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        result["$ref"] = place + reference[1:]
    return result
