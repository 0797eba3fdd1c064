"""Decoders of the fields that may be large: prompts, token ids. Checked while they are decoded, with no object in
vain; four million token ids take a tenth of a second. Front end.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tenonry_openai_server.errors import APIError, bad_request

MAX_PROMPTS = 1024
Prompt = str | list[int]

_Id = Annotated[int, Meta(ge=0, lt=2**31)]
_ids = msgspec.json.Decoder(Annotated[list[_Id], Meta(min_length=1)]).decode
_texts = msgspec.json.Decoder(
    Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)]
).decode
_parts = msgspec.json.Decoder(
    Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=MAX_PROMPTS)]
).decode
_text = msgspec.json.Decoder(str).decode
_any_ids = msgspec.json.Decoder(list[_Id]).decode

_ID_SCHEMA = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
IDS_SCHEMA: dict[str, Any] = {"type": "array", "items": _ID_SCHEMA}
_ONE_PROMPT = [{"type": "string"}, {**IDS_SCHEMA, "minItems": 1}]
PROMPTS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        *_ONE_PROMPT,
        *(
            {"type": "array", "items": form, "minItems": 1, "maxItems": MAX_PROMPTS}
            for form in _ONE_PROMPT
        ),
    ]
}


def decode_prompts(raw: msgspec.Raw) -> list[Prompt]:
    """Any of the four forms of a prompt, as a list of prompts. Raises APIError."""
    start = bytes(memoryview(raw)[:64])
    inner = start[1:].lstrip()[:1]
    try:
        if start[:1] == b'"':
            return [_text(raw)]
        if inner == b'"':
            return list(_texts(raw))
        if inner == b"[":
            return [_ids(part) for part in _parts(raw)]
        return [_ids(raw)]
    except msgspec.ValidationError:
        raise bad_request(
            "prompt: must be a text, a list of texts, a list of token ids (0 to 2147483647) or a list of such lists; "
            f"none of them empty, and at most {MAX_PROMPTS} prompts",
            "prompt",
        ) from None


def decode_text(raw: msgspec.Raw) -> str | None:
    """A text of any length, or null. Raises APIError."""
    try:
        return None if bytes(memoryview(raw)[:4]) == b"null" else _text(raw)
    except msgspec.ValidationError:
        raise bad_request("prompt: must be a text", "prompt") from None


def decode_ids(raw: msgspec.Raw) -> list[int]:
    """Token ids, any number of them. Raises APIError."""
    try:
        return _any_ids(raw)
    except msgspec.ValidationError as error:
        raise _not_ids(error) from None


def _not_ids(error: msgspec.ValidationError) -> APIError:
    place = str(error).partition("$[")[2].partition("]")[0]
    where = f"tokens.{place}" if place else "tokens"
    return bad_request(f"{where}: must be a list of token ids (0 to 2147483647)", where)
