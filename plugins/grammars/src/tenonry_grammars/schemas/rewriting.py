"""A JSON schema as a grammar library gets it: written anew from the forms of values that it allows. Pure.

The reading is the same for all backends: what is refused here is refused by each. A backend adds how its library takes
one form, and refuses what this library cannot enforce.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.forms import Forms
from tenonry_grammars.schemas.leaves import ANY, EVERY, NONE, Anything, Conditions, Leaf, Sub
from tenonry_grammars.schemas.reading import Reader
from tenonry_grammars.schemas.writer import FormWriter, Schema


class Omitted(GrammarError):
    """A form that the library lacks, without which the others of its place are served."""


class Rewritten(NamedTuple):
    """The schema for the library, and the paths of the user's schema by the names of its definitions."""

    schema: Schema | bool
    paths: dict[str, str]


def rewritten(schema: Any, writer: FormWriter) -> Rewritten:
    """Raises GrammarError with the path of what no grammar holds, or that nothing satisfies."""
    places = _Places(Reader(schema), writer)
    return Rewritten(places.whole(), places.paths)


class _Places:
    """Each place that is more than small forms is a definition: it may lead back to itself, and an error of the library
    names it.
    """

    def __init__(self, reader: Reader, writer: FormWriter) -> None:
        self._reader = reader
        self._forms = Forms(reader)
        self._writer = writer
        self._names: dict[Conditions, str] = {}
        self.paths: dict[str, str] = {}

    def whole(self) -> Schema | bool:
        body = self._body(self._reader.root)
        definitions: dict[str, Schema | bool] = {}
        while len(definitions) < len(self._names):
            for conditions, name in list(self._names.items()):
                if name not in definitions:
                    self.paths[name] = pointer(self._reader.path(conditions))
                    definitions[name] = self._body(conditions)
        if not definitions:
            return body
        whole = body if isinstance(body, dict) else {"anyOf": [body]}
        return {**whole, "$defs": definitions}

    def _part(self, conditions: Conditions) -> Schema | bool:
        """The schema of a place: itself where it is small, or a reference."""
        if conditions == ANY:
            return True
        if conditions == NONE or not self._forms.is_satisfied(conditions):
            return False
        leaves = self._forms.of[conditions]
        if len(leaves) == 1 and isinstance(leaves[0], Sub):
            return self._part(leaves[0].conditions)
        if all(isinstance(leaf, Anything) or self._writer.is_small(leaf) for leaf in leaves):
            return self._body(conditions)
        name = self._names.setdefault(conditions, f"d{len(self._names)}")
        return {"$ref": f"#/$defs/{name}"}

    def _body(self, conditions: Conditions) -> Schema | bool:
        leaves = self._forms.of[conditions]
        omitted: GrammarError = GrammarError("nothing satisfies it")
        options: list[Schema | bool] = []
        try:
            for leaf in leaves:
                try:
                    options.append(self._leaf(leaf))
                except Omitted as error:
                    omitted = error
            options = [option for option in options if option is not False]
            if not options:
                raise omitted
        except GrammarError as error:
            if error.path is None:
                error.path = pointer(self._reader.path(conditions))
            raise
        if True in options or set(EVERY) <= set(leaves):
            return True
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _leaf(self, leaf: Leaf) -> Schema | bool:
        if isinstance(leaf, Anything):
            return True
        if isinstance(leaf, Sub):
            return self._part(leaf.conditions)
        return self._writer.write(leaf, self._part)
