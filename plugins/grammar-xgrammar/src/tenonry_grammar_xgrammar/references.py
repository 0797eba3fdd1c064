"""Targets of references in a JSON schema, and a schema's restricting keywords. Pure."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import RESTRICTING, pointer

Path = tuple[str, ...]
Schema = dict[str, Any]

# `uniqueItems: false` says nothing, and `unevaluatedProperties: false` what is assumed anyway.
EMPTY_CLAIMS = (("uniqueItems", False), ("unevaluatedProperties", False))


class References:
    """Names for the schemas to which references lead. `waiting`: those that were named since: name, path, schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._names: dict[Path, str] = {}
        self.waiting: list[tuple[str, Path, Any]] = []

    def name(self, path: Path, reference: Any) -> str:
        """The name of the schema to which a reference at `path` leads. Raises GrammarError."""
        target, schema = self.target(path, reference)
        if target not in self._names:
            name = f"d{len(self._names)}"
            self._names[target] = name
            self.waiting.append((name, target, schema))
        return self._names[target]

    def target(self, path: Path, reference: Any) -> tuple[Path, Any]:
        """That schema, over others that say nothing but where to go on, and its path. Raises GrammarError."""
        seen: set[Path] = set()
        while True:
            target, schema = self._found(path, reference)
            if target in seen:
                raise GrammarError(
                    f"nothing satisfies it: '{reference}' leads back to itself", pointer(path)
                )
            seen.add(target)
            rules = rules_of(schema) if isinstance(schema, dict) else {}
            if set(rules) != {"$ref"}:
                return target, schema
            path = target
            reference = rules["$ref"]

    def _found(self, path: Path, reference: Any) -> tuple[Path, Any]:
        where = pointer(path)
        is_text = isinstance(reference, str)
        if not is_text or not (reference == "#" or reference.startswith("#/")):
            raise GrammarError(
                f"the reference {reference!r} leads out of the schema, or to a name: only such as '#/$defs/name' are "
                "followed, and nothing is retrieved",
                where,
            )
        steps = []
        for written in unquote(reference).split("/")[1:]:
            step = written.replace("~1", "/").replace("~0", "~")
            steps.append(step)
        schema = self._root
        for step in steps:
            if isinstance(schema, dict) and step in schema:
                schema = schema[step]
            elif isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
                schema = schema[int(step)]
            else:
                raise GrammarError(
                    f"the reference '{reference}' leads to '{step}', which does not exist", where
                )
        return tuple(steps), schema


def rules_of(schema: Schema) -> Schema:
    """The keywords that say something of the value."""
    return {
        keyword: value
        for keyword, value in schema.items()
        if keyword in RESTRICTING
        and not any(keyword == empty and value is claim for empty, claim in EMPTY_CLAIMS)
    }
