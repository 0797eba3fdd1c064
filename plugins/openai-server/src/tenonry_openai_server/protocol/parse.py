"""Bytes of a body to a checked request model, or a 400 that names the field, the value and the bound. Front end.

A body is split into its top-level fields first, without making objects of them: names and sizes are checked on the raw
fields, so that millions of fields, or of tiny lists in a field that holds a few numbers, are never built. A model has
its own decoders for the fields that may be large. Names that the model lacks are checked by `names.py`.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenonry_openai_server.errors import APIError, bad_request
from tenonry_openai_server.protocol.fields import HARMLESS, UNSUPPORTED
from tenonry_openai_server.protocol.names import (
    FieldRules,
    Report,
    check_nested,
    small_value,
    top_fields,
)

MAX_SHOWN_BYTES = 4096
MAX_COPIED_BYTES = 4 << 20  # every completion sends a copy of the settings to its engine
MAX_FIELD_BYTES = 128 << 10
LARGER_FIELDS: dict[str, int] = {
    "allowed_token_ids": 4 << 20,
    "bad_words": 2 << 20,
    "stop": 512 << 10,
    "response_format": 1 << 20,
    "structured_outputs": 1 << 20,
    "guided_json": 1 << 20,
    "guided_regex": 1 << 20,
    "guided_choice": 1 << 20,
    "guided_grammar": 1 << 20,
    "tools": 1 << 20,
}
# An escape in a text of JSON; the group is half of a surrogate pair.
ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
LENGTHS = {("max_tokens",), ("max_completion_tokens",)}
NEW_WORDS = {  # of errors whose own text names classes
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
}
FORMS = {
    "tool_choice": "must be none, auto, required, or an object of the type function or allowed_tools with functions",
    "stop": "must be a text or a list of at most 64 texts, of 1 to 1024 characters each",
    "content": 'must be a text or a list of parts such as {"type": "text", "text": "…"}',
}


def _name_harmless_fields(schema: dict[str, Any], model: type[Body]) -> None:
    """Add to the schema of a body the names that it accepts besides its own."""
    if model.is_strict:
        schema["additionalProperties"] = False
        return
    for name in sorted(HARMLESS):
        schema["properties"].setdefault(name, {"description": "Changes no answer here."})


class Body(BaseModel):
    """Base of all request bodies: exact JSON types, no surprises. A field that is null counts as absent.

    `is_strict`: unknown fields are rejected.
    """

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        protected_namespaces=(),
        json_schema_extra=_name_harmless_fields,
    )

    # of the fields that may be large
    decoders: ClassVar[Mapping[str, Callable[[msgspec.Raw], Any]]] = {}
    is_strict: ClassVar[bool] = False

    model: str | None = Field(None, max_length=1024)

    @property
    def num_completions(self) -> int:
        """Number of requested completions, each with the same settings."""
        return 0

    def unused_parts(self) -> Iterator[tuple[str, str]]:
        """Parts without an effect, and why."""
        yield from ()


BodyType = TypeVar("BodyType", bound=Body)


def parse_body(model: type[BodyType], raw: bytes, report: Report) -> BodyType:
    """Read and check a JSON body. Fields without an effect are reported. Raises APIError 400."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        fields = _known_fields(model, raw, report)
        check_nested(model, raw, fields, report)
        values = _decode(model, fields)
    except msgspec.ValidationError:
        raise bad_request("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(raw, error) from None
    try:
        body = model.model_validate(values)
    except ValidationError as error:
        raise explain(error, fields) from None
    _check_copies(
        body, sum(memoryview(fields[name]).nbytes for name in values if name not in model.decoders)
    )
    for part, reason in body.unused_parts():
        report(part, reason)
    return body


def not_json(raw: bytes | memoryview, error: Exception | str) -> APIError:
    """The answer to a body that cannot be decoded; decoders report half a surrogate pair as truncated data."""
    half = next((found[0] for found in ESCAPE.finditer(raw) if found[1]), None)
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif not bytes(raw).strip():
        reason = "it is empty"
    elif half is not None:
        reason = (
            f"{half.decode()} is half of a surrogate pair, a character cut in two; leave it out"
        )
    else:
        reason = str(error)
    return bad_request(f"the body is not valid JSON: {reason}", code="invalid_json")


def _check_copies(body: Body, settings_bytes: int) -> None:
    """Raises APIError where the settings of all completions together would occupy an engine for long."""
    if body.num_completions * settings_bytes > MAX_COPIED_BYTES:
        raise bad_request(
            f"{body.num_completions} completions with {settings_bytes} bytes of settings each are above "
            f"{MAX_COPIED_BYTES} bytes; request fewer completions, or send shorter lists with them"
        )


@functools.cache
def rules_of_body(model: type[Body]) -> FieldRules:
    """Field rules of a body of this kind."""
    if model.is_strict:
        return FieldRules(frozenset(model.model_fields), is_strict=True)
    return FieldRules(frozenset(model.model_fields), UNSUPPORTED, HARMLESS)


def _known_fields(model: type[Body], raw: bytes, report: Report) -> dict[str, msgspec.Raw]:
    """The fields of a body that the model has. Raises msgspec's errors, and APIError for a rejected name."""
    rules = rules_of_body(model)
    fields = {}
    for name, value in top_fields(raw, rules).items():
        if name in rules.known:
            fields[name] = value
        elif rules.judge(name, small_value(value)):
            report(name)
    return fields


def _decode(model: type[Body], fields: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    """Decode the fields, none of them too large, without null ones. Raises APIError."""
    values = {}
    for name, raw in fields.items():
        if bytes(memoryview(raw)[:4]) == b"null":
            continue
        if name in model.decoders:
            values[name] = model.decoders[name](raw)
            continue
        max_bytes = LARGER_FIELDS.get(name, MAX_FIELD_BYTES)
        if memoryview(raw).nbytes > max_bytes:
            raise bad_request(f"{name}: is larger than {max_bytes} bytes", name)
        values[name] = _decode_small(name, raw)
    return values


def _decode_small(name: str, raw: msgspec.Raw) -> Any:
    """Decode the value; an integer may also be written as 3.0, the same number in JSON."""
    try:
        value = msgspec.json.decode(raw)
    except msgspec.ValidationError:  # the syntax is right, but a number is beyond 64 bits
        raise bad_request(f"{name}: holds a number that is out of range", name) from None
    return int(value) if isinstance(value, float) and value.is_integer() else value


def explain(
    error: ValidationError, fields: Mapping[str, msgspec.Raw], under: str | None = None
) -> APIError:
    """The first problem of a body, or of its field `under`, as a sentence. Raises nothing."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        raw = memoryview(fields[under]) if under in fields else b""
        return not_json(raw, first["msg"].removeprefix("Invalid JSON: "))
    loc: tuple[int | str, ...] = first["loc"]
    union = next((place for place, part in enumerate(loc) if part in FORMS), None)
    if union is not None and first["type"] != "missing":
        loc = loc[: union + 1]
        own = [problem for problem in problems if problem["loc"][: union + 1] == loc]
        first = (
            next((problem for problem in own if problem["type"] == "value_error"), None) or own[0]
        )
        text = _problem_text(first, "") if first["type"] == "value_error" else FORMS[str(loc[-1])]
    else:
        text = _problem_text(first, _shown(fields, loc if under is None else (under, *loc)))
    param = ".".join(str(part) for part in (loc if under is None else (under, *loc))) or None
    return bad_request(f"{param}: {text}" if param else f"the body: {text}", param)


def _problem_text(problem: Any, shown: str) -> str:
    text: str = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "value_error":
        return text
    if problem["type"] in ("too_short", "too_long"):
        return f"{text[:1].lower()}{text[1:]}".replace(" after validation", "")
    if problem["loc"][-1:] in LENGTHS and problem["type"] == "greater_than_equal":
        shown += "; leave it out for the default"
    text = NEW_WORDS.get(problem["type"], text)
    return f"{text[:1].lower()}{text[1:]}{shown}"


def _shown(fields: Mapping[str, msgspec.Raw], loc: tuple[int | str, ...]) -> str:
    """Text that shows a rejected scalar, or "" for a large value."""
    raw = fields.get(str(loc[0])) if loc else None
    if raw is None or memoryview(raw).nbytes > MAX_SHOWN_BYTES:
        return ""
    value: Any = msgspec.json.decode(raw)
    for part in loc[1:]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return ""
    if isinstance(value, list | dict):
        return f", not a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    text = repr(value)
    return f", not {text}" if len(text) <= 80 else f", not {text[:80]}…"
