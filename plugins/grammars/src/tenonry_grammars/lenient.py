"""Removes unenforceable keywords from a JSON schema, one by one, until a backend accepts it. Helper process.

Each refusal names its keyword; everything beside it stays in force.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import GrammarBackend, GrammarError
from tenonry_grammars.probing import check_spec
from tenonry_grammars.schema import parse_schema, part_at

MAX_LEFT_OUT = 64


class Relaxed(NamedTuple):
    """A schema that can be served, as text, and JSON pointers of the keywords that it lacks."""

    schema: str
    left_out: tuple[str, ...]


def relaxed(backend: GrammarBackend, text: str) -> Relaxed:
    """Raises GrammarError for a schema that is wrong, or not served without any one keyword."""
    schema = parse_schema(text)
    left_out: list[str] = []
    while True:
        try:
            check_spec(backend, StructuredOutput(json=text))
        except GrammarError as error:
            found = part_at(schema, error.path or "")
            if len(left_out) == MAX_LEFT_OUT or not _leave_out(found, error.keyword):
                raise
            left_out.append(f"{error.path}/{error.keyword}")
            text = json.dumps(schema, separators=(",", ":"))
        else:
            return Relaxed(text, tuple(left_out))


def _leave_out(part: Any, keyword: str | None) -> bool:
    """Remove the keyword from the schema; return False if it is absent. `oneOf` is weakened to `anyOf`."""
    if not isinstance(part, dict) or keyword is None or keyword not in part:
        return False
    value = part[keyword]
    if keyword != "oneOf":
        del part[keyword]
    elif "anyOf" in part:
        del part[keyword]
        part["allOf"] = [*part.get("allOf", ()), {"anyOf": value}]
    else:  # in its place, which decides on the order of properties
        items = list(part.items())
        part.clear()
        part.update(("anyOf" if name == keyword else name, value) for name, value in items)
    return True
