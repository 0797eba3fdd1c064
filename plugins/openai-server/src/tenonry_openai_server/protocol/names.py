"""Names of the fields of a body, and of the objects in it: used, rejected, or reported as ignored. Front end.

Names are read from the raw JSON, before objects are made of it, and their number is bounded. The model of an object
defines its fields. Among other fields, one that is null or has a neutral value counts as absent; one that would change
the answer and one that looks like a misspelt field of the model are rejected; the rest are reported to `Report` and
have no effect.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from pydantic import BaseModel

from tenonry_openai_server.errors import APIError, bad_request
from tenonry_openai_server.protocol.fields import (
    CACHE_HINTS,
    ELSEWHERE,
    HARMLESS_VALUES,
    NOTHING,
    nearest_field,
    unknown_field,
)

MAX_UNKNOWN = 64  # unknown fields of a body; the limit of its objects is the same
MAX_NESTED = 65_536  # names in the objects of one body
MAX_VALUE_BYTES = 256
Report = Callable[..., None]  # of a part, and why it has no effect
Fields = Mapping[str, msgspec.Raw]
Models = tuple[type[BaseModel], ...]
_SCALARS = str | float | bool | None
_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_any_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class _Name(str):
    """A key of an object; a separate type, so that the decoder calls back for each."""

    __slots__ = ()


class NameBound:
    """Decodes objects of one body with at most `most` names. Raises `is_above` for the first one beyond.

    A body with fewer colons has fewer names, and is decoded without a check of each.
    """

    __slots__ = ("_is_above", "_is_short", "_left")

    def __init__(self, body: bytes, most: int, is_above: APIError) -> None:
        self._left = most
        self._is_short = body.count(b":") <= most
        self._is_above = is_above

    def object(self, raw: bytes | msgspec.Raw) -> Fields:
        """The fields of an object. Raises msgspec's errors, too."""
        if self._is_short:
            return _any_object(raw)
        found = msgspec.json.decode(raw, type=dict[_Name, msgspec.Raw], dec_hook=self._take)
        return {str(name): value for name, value in found.items()}

    def objects(self, raw: msgspec.Raw) -> Sequence[Fields]:
        """The fields of each object of a list. Raises msgspec's errors, too."""
        if self._is_short:
            return _any_objects(raw)
        found = msgspec.json.decode(raw, type=list[dict[_Name, msgspec.Raw]], dec_hook=self._take)
        return [{str(name): value for name, value in fields.items()} for fields in found]

    def _take(self, _: type, name: str) -> _Name:
        self._left -= 1
        if self._left < 0:
            raise self._is_above
        return _Name(name)


@dataclass(frozen=True, slots=True)
class FieldRules:
    """The fields of one kind of object. `refused`: name → reason; `harmless`: names that never change an answer.

    `nothing`: name → values without effect. `is_strict`: all other names are rejected.
    """

    known: Collection[str]
    refused: Mapping[str, str] = field(default_factory=dict)
    harmless: Collection[str] = ()
    nothing: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: HARMLESS_VALUES)
    is_strict: bool = False

    def judge(self, name: str, value: Any, under: str = "") -> bool:
        """Return True if a field that is not one of `known` is to be reported. Raises APIError 400.

        `under`: the path of the object, such as "tools.0".
        """
        if self.is_strict:
            raise unknown_field(name, nearest_field(name, self.known), under)
        if name in self.harmless or value is None:
            return False
        if value in self.nothing.get(name, NOTHING if name in self.refused else ()):
            return False
        path = f"{under}.{name}" if under else name
        if name in self.refused:
            raise bad_request(f"{path}: {self.refused[name]}; leave it out", path, "unsupported")
        nearest = None if name in ELSEWHERE else nearest_field(name, self.known)
        if nearest is not None:
            raise unknown_field(name, nearest, under)
        return True


def top_fields(raw: bytes, rules: FieldRules) -> Fields:
    """The top-level fields of a body. Raises msgspec's errors, and APIError for too many."""
    most = len(rules.known) + len(rules.refused) + len(rules.harmless) + MAX_UNKNOWN
    is_above = bad_request(
        f"the body has more than {most} fields; leave out those that this request does not have",
        code="unknown_parameter",
    )
    return NameBound(raw, most, is_above).object(raw)


def small_value(raw: msgspec.Raw) -> Any:
    """Value of a field; an object unequal to everything for one that is large or out of range."""
    if memoryview(raw).nbytes > MAX_VALUE_BYTES:
        return object()
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        return object()


def check_nested(model: type[BaseModel], body: bytes, fields: Fields, report: Report) -> None:
    """Check the names in the objects of a body's `fields`. Raises APIError 400.

    Values that should be objects but are not are left to the model's own check.
    """
    walk: _Walk | None = None
    for name, shape in _shape((model,)).nested.items():
        raw = fields.get(name)
        if raw is None or shape.is_known(raw):
            continue
        walk = walk or _Walk(body, report)
        walk.value(shape, raw, (None, name))


class _Shape:
    """The fields of an object that is one of several models: its rules, and the shapes of the objects in it."""

    def __init__(self, models: Models) -> None:
        names = [
            (each.alias or name, each) for one in models for name, each in one.model_fields.items()
        ]
        refused: dict[str, str] = {}
        for model in models:
            refused |= getattr(model, "refused_fields", {})
        known = frozenset(name for name, _ in names)
        self.rules = FieldRules(known, refused, CACHE_HINTS)
        self.only_in_lists = all(getattr(model, "only_in_lists", False) for model in models)
        self.nested: dict[str, _Shape] = {}
        for name, each in names:
            inner = tuple(dict.fromkeys(_models(each.annotation)))
            if inner:
                self.nested[name] = _shape(inner)
        self.struct = self._struct()
        self._decode = msgspec.json.Decoder(self.value_type).decode

    def _struct(self) -> Any:
        """A type that has these fields and no others."""
        fields = [
            (
                name,
                self.nested[name].value_type
                if name in self.nested
                else msgspec.Raw | msgspec.UnsetType,
                msgspec.UNSET,
            )
            for name in sorted(self.rules.known)
        ]
        renamed = [(f"f{place}", kind, default) for place, (_, kind, default) in enumerate(fields)]
        names = {f"f{place}": name for place, (name, _, _) in enumerate(fields)}
        return msgspec.defstruct(
            "Known", renamed, rename=names.get, forbid_unknown_fields=True, gc=False
        )

    @property
    def value_type(self) -> Any:
        """Type of an object, a list of objects, or a value without objects."""
        return self.struct | list[self.struct | _SCALARS] | _SCALARS | msgspec.UnsetType

    def is_known(self, raw: msgspec.Raw) -> bool:
        """Return True if all names in a value are known fields; a fast check."""
        try:
            self._decode(raw)
        except msgspec.MsgspecError:
            return False
        return True


@functools.cache
def _shape(models: Models) -> _Shape:
    return _Shape(models)


class _Walk:
    """Walks through the objects of one body. A path is the path of the parent and a name or an index."""

    __slots__ = ("_bound", "_report", "_reported")

    def __init__(self, body: bytes, report: Report) -> None:
        self._report = report
        self._reported: set[str] = set()
        self._bound = NameBound(
            body, MAX_NESTED, bad_request(f"the body has more than {MAX_NESTED} fields")
        )

    def value(self, shape: _Shape, raw: msgspec.Raw, path: _Path) -> None:
        """One field, by its first character: an object, or a list of objects."""
        first = bytes(memoryview(raw)[:1])
        if first == b"{" and shape.only_in_lists:
            return
        if first == b"{":
            self._object(shape, self._bound.object(raw), path)
        elif first == b"[":
            try:
                found = self._bound.objects(raw)
            except msgspec.ValidationError:  # anything else
                return
            for place, one in enumerate(found):
                self._object(shape, one, (path, place))

    def _object(self, shape: _Shape, fields: Fields, path: _Path) -> None:
        for name, raw in fields.items():
            if name in shape.nested:
                self.value(shape.nested[name], raw, (path, name))
            elif name not in shape.rules.known:
                self._unknown(shape.rules, name, raw, path)

    def _unknown(self, rules: FieldRules, name: str, raw: msgspec.Raw, path: _Path) -> None:
        """Report a field once, whichever of many messages or tools has it."""
        shown = _dotted((path, name), index="[]")
        if shown in self._reported or not rules.judge(name, small_value(raw), _dotted(path)):
            return
        if len(self._reported) >= MAX_UNKNOWN:
            raise bad_request(
                f"the objects in the body have more than {MAX_UNKNOWN} fields that this request does not have",
                code="unknown_parameter",
            )
        self._reported.add(shown)
        self._report(shown)


_Path = tuple["_Path | None", str | int]


def _dotted(path: _Path | None, index: str = ".%d") -> str:
    """A path as text, such as "tools.0.function", or "tools[].function" with `index="[]"`."""
    parts: list[str] = []
    while path is not None:
        path, last = path
        parts.append(f".{last}" if isinstance(last, str) else index.replace("%d", str(last)))
    return "".join(reversed(parts)).removeprefix(".")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
