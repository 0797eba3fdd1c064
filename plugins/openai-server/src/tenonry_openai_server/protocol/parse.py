"""Bytes of a body to a checked request model, or a 400 that names the field, the value and the bound. Front end.

A body is cut into its top-level fields first, without making objects of them: names and sizes decide there, so that
millions of fields, or of tiny lists in a field that nobody reads or that holds a few numbers, are never built. A model
brings its own decoders for the fields that may be large.

Unknown fields are ignored, as OpenAI's clients expect of a server older than they are, and named once in the log. A
field that is known to change the answer, and that this server cannot honour, is refused: ignoring it would lie.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec import UNSET
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tenonry_openai_server.errors import APIError, bad_request

logger = logging.getLogger("tenonry.server")

MAX_UNKNOWN_NAMES = 100
MAX_FIELDS = 256
MAX_SHOWN_BYTES = 4096
IGNORED = frozenset({
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "verbosity", "reasoning_effort", "prediction", "spaces_between_special_tokens",
    "include_reasoning", "request_id", "mm_processor_kwargs",
})  # fmt: skip
_STRUCTURED = "structured output is not available in this server"
_TOOLS = "tool calls are not available in this server"
REFUSED = {
    "suffix": "text cannot be inserted before a suffix",
    "tools": _TOOLS,
    "functions": _TOOLS,
    "tool_choice": _TOOLS,
    "function_call": _TOOLS,
    "response_format": _STRUCTURED,
    "structured_output": _STRUCTURED,
    "structured_outputs": _STRUCTURED,
    "guided_json": _STRUCTURED,
    "guided_regex": _STRUCTURED,
    "guided_choice": _STRUCTURED,
    "guided_grammar": _STRUCTURED,
    "use_beam_search": "beam search is not available in this server",
    "logits_processors": "the operator chooses them with --worker-option logits_processors=[NAME]",
    "echo": "only /v1/completions repeats the prompt",
    "documents": "put texts into the messages",
    "prompt_embeds": "prompts are text or token ids, not embeddings",
    "audio": "this server answers with text only",
    "modalities": "this server answers with text only",
    "web_search_options": "this server does not search the web",
    "chat_template": "a request cannot bring a chat template; the operator sets it with --chat-template",
}
MAX_COPIED_BYTES = 4 << 20  # every completion takes a copy of the settings to its engine
MAX_FIELD_BYTES = 128 << 10
LARGER_FIELDS: dict[str, int] = {
    "allowed_token_ids": 4 << 20,
    "bad_words": 2 << 20,
    "stop": 512 << 10,
}
FORMS = {
    "stop": "must be a text or a list of at most 64 texts of at most 1024 characters",
    "content": 'must be a text or a list of parts such as {"type": "text", "text": "…"}',
}
HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
MAX_LISTED_BYTES = (
    1 << 20
)  # of a body whose fields are listed whatever their names, at a microsecond each
_unknown_names: set[str] = set()
_list_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Body(BaseModel):
    """Base of all request bodies: exact JSON types, no surprises."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    decoders: ClassVar[
        Mapping[str, Callable[[msgspec.Raw], Any]]
    ] = {}  # of the fields that may be large

    model: str | None = Field(None, max_length=1024)

    @property
    def num_completions(self) -> int:
        """How many completions it asks for, each with the same settings."""
        return 0


BodyType = TypeVar("BodyType", bound=Body)


def parse_body(model: type[BodyType], raw: bytes) -> BodyType:
    """Read and check a JSON body. Raises APIError 400."""
    try:
        fields = _cut(model, raw)
        values = _decode(model, fields)
    except msgspec.ValidationError:
        raise bad_request("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise bad_request(
            "the body is not valid JSON: it is nested too deeply", code="invalid_json"
        ) from None
    try:
        body = model.model_validate(values)
    except ValidationError as error:
        raise explain(error, fields) from None
    _check_copies(
        body, sum(memoryview(fields[name]).nbytes for name in values if name not in model.decoders)
    )
    return body


def _check_copies(body: Body, settings_bytes: int) -> None:
    """Raises APIError where the settings of all completions together would occupy an engine for long."""
    if body.num_completions * settings_bytes > MAX_COPIED_BYTES:
        raise bad_request(
            f"{body.num_completions} completions with {settings_bytes} bytes of settings each are above "
            f"{MAX_COPIED_BYTES} bytes; ask for fewer completions at once, or send shorter lists with them"
        )


def _cut(model: type[Body], raw: bytes) -> dict[str, msgspec.Raw]:
    """The top-level fields of a body; those of a large one only if their names mean something."""
    if len(raw) <= MAX_LISTED_BYTES:
        return _list_fields(raw)
    cut = _known_fields(model).decode(raw)
    return {
        name: value for name, value in msgspec.structs.asdict(cut).items() if value is not UNSET
    }


@functools.cache
def _known_fields(model: type[Body]) -> msgspec.json.Decoder[msgspec.Struct]:
    names = sorted({*model.model_fields, *REFUSED})
    return msgspec.json.Decoder(
        msgspec.defstruct(
            "Fields", [(name, msgspec.Raw | msgspec.UnsetType, UNSET) for name in names]
        )
    )


def _decode(model: type[Body], fields: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """The values of the fields that the model has, none of them too large. Raises APIError."""
    if len(fields) > MAX_FIELDS:
        raise bad_request(f"the body has {len(fields)} fields; at most {MAX_FIELDS} are allowed")
    values = {}
    for name, raw in fields.items():
        if name in model.decoders:
            values[name] = model.decoders[name](raw)
        elif name not in model.model_fields:
            _check_extra(name, raw)
        elif memoryview(raw).nbytes <= LARGER_FIELDS.get(name, MAX_FIELD_BYTES):
            values[name] = _decode_small(name, raw)
        else:
            raise bad_request(
                f"{name}: is larger than {LARGER_FIELDS.get(name, MAX_FIELD_BYTES)} bytes", name
            )
    return values


def _decode_small(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (
        msgspec.ValidationError
    ):  # the syntax is right, but a number is not one that this machine has
        raise bad_request(f"{name}: holds a number that is out of range", name) from None


def _check_extra(name: str, raw: msgspec.Raw) -> None:
    if name in REFUSED:
        value = _decode_small(name, raw) if memoryview(raw).nbytes <= 256 else True
        if value and value not in HARMLESS.get(name, ()):
            raise bad_request(f"{name}: {REFUSED[name]}; leave it out", name, "unsupported")
    elif (
        name not in IGNORED
        and name not in _unknown_names
        and len(_unknown_names) < MAX_UNKNOWN_NAMES
    ):
        _unknown_names.add(name)
        logger.warning("requests carry the field %r, which is unknown here and ignored", name[:64])


def explain(
    error: ValidationError, fields: Mapping[str, msgspec.Raw], under: str | None = None
) -> APIError:
    """The first problem of a body, or of its field `under`, in words. Raises nothing; inputs are looked up here."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        text = first["msg"].removeprefix("Invalid JSON: ")
        return bad_request(f"the body is not valid JSON: {text}", code="invalid_json")
    loc: tuple[int | str, ...] = first["loc"]
    union = next((place for place, part in enumerate(loc) if part in FORMS), None)
    if union is not None and first["type"] != "missing":
        loc = loc[: union + 1]
        own = [problem for problem in problems if problem["loc"][: union + 1] == loc]
        first = (
            next((problem for problem in own if problem["type"] == "value_error"), None) or own[0]
        )
        text = _words(first, "") if first["type"] == "value_error" else FORMS[str(loc[-1])]
    else:
        text = _words(first, _shown(fields, loc if under is None else (under, *loc)))
    param = ".".join(str(part) for part in (loc if under is None else (under, *loc))) or None
    return bad_request(f"{param}: {text}" if param else f"the body: {text}", param)


def _words(problem: Any, shown: str) -> str:
    text: str = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return "is missing"
    if problem["type"] == "value_error":
        return text
    return f"{text[:1].lower()}{text[1:]}{shown}"


def _shown(fields: Mapping[str, msgspec.Raw], loc: tuple[int | str, ...]) -> str:
    """Words for a rejected scalar, or none for what is large or no scalar."""
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
