"""Requests of the routes, checked field by field. Front end."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta

from tenonry.errors import RequestError
from tenonry_routes.values import whole

MAX_INPUTS = 2048
MISSING = re.compile("missing required field `(.+)`")
Texts = str | list[str]
Body = TypeVar("Body", bound="Common")


# Names of vLLM's requests that would change an answer.
_CHATS = "these routes take no chats; send texts"
_WHOLE = "scores are those of the model's own head"
REFUSED = {
    "messages": _CHATS,
    "add_generation_prompt": _CHATS,
    "continue_final_message": _CHATS,
    "chat_template_kwargs": _CHATS,
    "add_special_tokens": "special tokens are added to texts; send token ids to have others",
    "padding": "prompts are not padded",
    "truncation_side": "truncate_prompt_tokens keeps the start of a prompt",
    "use_activation": _WHOLE,
    "activation": _WHOLE,
    "softmax": _WHOLE,
    "data_1": "it is called text_1 here",
    "data_2": "it is called text_2 here",
    "queries": "it is called text_1 here",
    "items": "it is called text_2 here",
}

# Values with which fields of vLLM's ask for what is done anyway.
DONE_ANYWAY: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "padding": ("do_not_pad",),
    "truncation_side": ("right",),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "use_activation": (),
}


class Common(msgspec.Struct, kw_only=True):
    """Fields of all requests. `user` changes no answer. `REFUSED`: further names that would."""

    REFUSED: ClassVar[dict[str, str]] = {}

    model: str | None = None
    user: str | None = None
    priority: int = 0
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    truncate_prompt_tokens: int | None = None

    @property
    def engine_fields(self) -> dict[str, Any]:
        """Keywords of each request to the engine."""
        return {"priority": self.priority, "cache_salt": self.cache_salt}


class Embeddings(Common, kw_only=True):
    """POST /v1/embeddings."""

    REFUSED: ClassVar[dict[str, str]] = {
        "use_activation": "it is called normalize here",
        "embed_dtype": "vectors are float32",
        "endianness": "vectors in base64 are little-endian",
    }

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool | None = None


class Pooling(Embeddings, kw_only=True):
    """POST /pooling. `task`: one that the model serves; by default the first of embed, classify and score."""

    task: str | None = None


class Classify(Common, kw_only=True):
    """POST /v1/classify."""

    input: str | list[Any]


class Score(Common, kw_only=True):
    """POST /v1/score."""

    text_1: Texts
    text_2: Texts


class Document(msgspec.Struct):
    """A document of a rerank request, where it is no plain text."""

    text: str


class Rerank(Common, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool = True


def parsed(kind: type[Body], value: Any) -> Body:
    """`value` as a request; a field that is null is as good as absent. Raises RequestError that names the field."""
    if isinstance(value, dict):
        value = {name: whole(entry) for name, entry in value.items() if entry is not None}
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = None
        if "`$." in text:
            place = text.rpartition("`$.")[2].rstrip("`")
        elif (missing := MISSING.search(text)) is not None:
            place, text = missing[1], "is missing"
        where = place or "the body"
        raise RequestError(f"{where}: {text}", place) from None


def check_names(kind: type[Common], value: Any, fields: Any) -> None:
    """Judge the names in a body; `fields` is the server's `FieldCheck`."""
    fields.body(value, kind.__struct_fields__, {**REFUSED, **kind.REFUSED}, DONE_ANYWAY)
    documents = value.get("documents") if isinstance(value, dict) else None
    for place, document in enumerate(documents if isinstance(documents, list) else ()):
        fields.object(document, Document.__struct_fields__, f"documents.{place}")


def prompts(value: str | list[Any]) -> list[Any]:
    """The prompts of an `input`: a text, token ids, or a list of either. Raises RequestError."""
    if isinstance(value, str):
        return [_prompt(value, "input")]
    if not value:
        raise RequestError("input: it is empty; give a text, or a list of them", "input")
    if all(_is_id(each) for each in value):
        return [_prompt(value, "input")]
    check_count("input", len(value))
    return [_prompt(each, f"input.{place}") for place, each in enumerate(value)]


def check_count(field: str, count: int) -> None:
    """Raises RequestError above the bound."""
    if count > MAX_INPUTS:
        raise RequestError(
            f"{field}: {count} are more than {MAX_INPUTS}; send several requests", field
        )


def _prompt(value: Any, where: str) -> Any:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(_is_id(each) for each in value):
        return {"prompt_token_ids": value}
    raise RequestError(f"{where}: it must be a text or a list of token ids, and not empty", where)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
