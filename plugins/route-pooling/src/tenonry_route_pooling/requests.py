"""What the routes may be asked, checked field by field. Front end."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from tenonry.errors import RequestError

MAX_INPUTS = 2048
Texts = str | list[str]
Body = TypeVar("Body", bound="Common")


class Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What each of them takes. `user` changes no answer."""

    model: str | None = None
    user: str | None = None
    priority: int = 0
    truncate_prompt_tokens: int | None = None


class Embeddings(Common, kw_only=True):
    """POST /v1/embeddings."""

    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    normalize: bool | None = None


class Classify(Common, kw_only=True):
    """POST /v1/classify."""

    input: str | list[Any]


class Score(Common, kw_only=True):
    """POST /v1/score."""

    text_1: Texts
    text_2: Texts


class Document(msgspec.Struct, forbid_unknown_fields=True):
    """A document of a rerank request, where it is no plain text."""

    text: str


class Rerank(Common, kw_only=True):
    """POST /v1/rerank."""

    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool = True


def parsed(kind: type[Body], value: Any) -> Body:
    """`value` as a request. Raises RequestError that names the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        place = None
        if "`$." in text:
            place = text.rpartition("`$.")[2].rstrip("`")
        where = place or "the body"
        raise RequestError(f"{where}: {text}", place) from None


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
