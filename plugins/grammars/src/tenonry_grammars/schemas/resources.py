"""Targets of references in a JSON schema, in all drafts; nothing is retrieved. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import children, pointer
from tenonry_grammars.schemas.leaves import Location

Path = tuple[str, ...]
_DRAFT = re.compile(r"^https?://json-schema\.org/draft(?:-0|/)(\d+)(?:-\d+)?/(?:hyper-)?schema#?$")
NEWEST = 2020
LAST_WITHOUT_SIBLINGS = 7  # up to this draft, nothing beside `$ref` counts


class Place(NamedTuple):
    """A schema, its path, and the URI against which references in it are resolved.

    `negated_by`: the keyword, such as `not`, for which the opposite of the schema is needed.
    """

    path: Path
    schema: Any
    base: str
    negated_by: Location | None = None

    def location(self, keyword: str) -> Location:
        """The keyword that is at fault: one of this schema, or the one that needs its opposite."""
        return self.negated_by or Location(self.path, keyword)


def draft_of(schema: Any) -> int:
    """The draft that `$schema` names: 3, 4, 6, 7, 2019 or 2020; the newest one for none or an unknown one."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    found = _DRAFT.match(uri) if isinstance(uri, str) else None
    return int(found[1]) if found else NEWEST


def _joined(base: str, reference: str) -> str:
    """The reference against the base, of any scheme."""
    if reference.startswith("#"):
        return urldefrag(base).url + reference
    return urljoin(base, reference)


class Resources:
    """The whole schema, with the names that its parts have."""

    def __init__(self, root: Any) -> None:
        self.draft = draft_of(root)
        self.root = Place((), root, "")
        self._named: dict[str, Place] = {}
        self._dynamic: dict[str, list[Place]] = {}
        self._bases: dict[Path, str] = {}
        self._read(root)

    def at(self, path: Path, schema: Any, base: str) -> Place:
        """The place of a part; it may have a base URI of its own."""
        return Place(path, schema, self._bases.get(path, base))

    def target(self, place: Place, keyword: str) -> Place:
        """Target of a schema's reference. Raises GrammarError."""
        reference = place.schema[keyword]
        if not isinstance(reference, str):
            raise GrammarError(f"'{keyword}' is a text, not {reference!r:.64}", pointer(place.path))
        if keyword in {"$dynamicRef", "$recursiveRef"} and not self._is_plain(reference):
            raise GrammarError(
                f"'{keyword}' is not served where what it leads to depends on the way there; use '$ref'",
                pointer(place.path),
            )
        uri, fragment = urldefrag(_joined(place.base, reference))
        whole = f"{uri}#{unquote(fragment)}"
        if whole in self._named:
            return self._named[whole]
        if uri == self.root.base:
            document = self.root
        elif f"{uri}#" in self._named:
            document = self._named[f"{uri}#"]
        else:
            raise GrammarError(
                f"the reference {reference!r:.128} leads out of the schema, and nothing is retrieved: put its target "
                "under '$defs'",
                pointer(place.path),
            )
        return self._below(document, unquote(fragment), reference, place)

    def _is_plain(self, reference: str) -> bool:
        """Return True if a dynamic reference has a single possible target."""
        _, _, name = reference.partition("#")
        return len(self._dynamic.get(name, ())) <= 1 and not name.startswith("/")

    def _below(self, document: Place, fragment: str, reference: str, place: Place) -> Place:
        where = pointer(place.path)
        if fragment and not fragment.startswith("/"):
            raise GrammarError(
                f"the reference '{reference:.128}' names an anchor that does not exist", where
            )
        found = document
        for written in fragment.split("/")[1:]:
            step = written.replace("~1", "/").replace("~0", "~")
            schema = found.schema
            if isinstance(schema, dict) and step in schema:
                inner = schema[step]
            elif isinstance(schema, list) and step.isdecimal() and int(step) < len(schema):
                inner = schema[int(step)]
            else:
                raise GrammarError(
                    f"the reference '{reference:.128}' leads to '{step:.64}', which does not exist",
                    where,
                )
            found = self.at((*found.path, step), inner, found.base)
        return found

    def _read(self, root: Any) -> None:
        for place in self._places(root):
            schema = place.schema
            if not isinstance(schema, dict):
                continue
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = schema.get(keyword)
                if isinstance(name, str):
                    self._named.setdefault(f"{place.base}#{name}", place)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(name, []).append(place)
            if schema.get("$recursiveAnchor") is True:
                self._dynamic.setdefault("", []).append(place)

    def _places(self, root: Any) -> Iterator[Place]:
        waiting = [Place((), root, "")]
        while waiting:
            place = waiting.pop()
            place = self._identified(place)
            if place.path == ():
                self.root = place
            yield place
            for path, schema in children(place.path, place.schema):
                waiting.append(Place(path, schema, place.base))

    def _identified(self, place: Place) -> Place:
        """The place with the URI that its schema gives itself."""
        schema = place.schema
        keyword = "id" if self.draft <= 4 else "$id"
        name = schema.get(keyword) if isinstance(schema, dict) else None
        if not isinstance(name, str) or (self.draft <= LAST_WITHOUT_SIBLINGS and "$ref" in schema):
            return place
        uri, fragment = urldefrag(_joined(place.base, name))
        if fragment or name.startswith("#"):  # an anchor, in the older drafts
            self._named.setdefault(f"{uri}#{fragment}", place)
            return place
        self._bases[place.path] = uri
        found = Place(place.path, schema, uri)
        self._named.setdefault(f"{uri}#", found)
        return found
