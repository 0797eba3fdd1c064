"""Reads the options of a prompt and checks them. Front end, once per request."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tenonry.errors import RequestError
from tenonry.interfaces.io_processor import FORMS, Prompt, TextPrompt, TokenPrompt
from tenonry.step import I32

OPTIONS = (
    "text_pair",
    "truncate_prompt_tokens",
    "truncation",
    "max_length",
    "add_special_tokens",
    "images",
)


class ParsedPrompt(NamedTuple):
    """Parsed prompt of the user: text, or ids (then the text is for information only)."""

    text: str | None
    token_ids: Any
    truncate: int | None
    add_special_tokens: bool | None
    images: list[Any] | None = None
    text_pair: str | None = None


def parse_prompt(prompt: Prompt, *, max_model_len: int, is_pooled: bool = False) -> ParsedPrompt:
    """Raises RequestError for anything but the options that `TextIOProcessor.process_prompt` documents."""
    options = prompt.options
    if unknown := sorted(str(key) for key in options if key not in OPTIONS):
        raise RequestError(
            f"the prompt has fields that are not supported: {', '.join(unknown)}; it must be {FORMS}, with "
            f"{', '.join(OPTIONS)}",
            "prompt",
        )
    text, ids = None, None
    match prompt:
        case TextPrompt():
            text = prompt.text
        case TokenPrompt():
            text, ids = prompt.text, prompt.token_ids
        case _:
            raise RequestError(
                f"the prompt names neither 'prompt' nor 'prompt_token_ids'; it must be {FORMS}",
                "prompt",
            )
    pair = options.get("text_pair")
    if pair is not None and not (is_pooled and text is not None and isinstance(pair, str)):
        raise RequestError(
            f"'text_pair' is a {type(pair).__name__}; it is the second text of a pair that is scored, beside a text as "
            "'prompt'",
            "text_pair",
        )
    if ids is None and pair is None and not text:
        raise RequestError(
            "the prompt is empty; give some text, or one token id such as the model's BOS to start from nothing",
            "prompt",
        )
    return ParsedPrompt(
        text,
        ids,
        _truncation(options, max_model_len, 0 if is_pooled else 1),
        _checked_flag("add_special_tokens", options.get("add_special_tokens")),
        options.get("images"),
        pair,
    )


def _truncation(prompt: dict[str, Any], max_model_len: int, places: int) -> int | None:
    """Maximum length of the prompt in tokens, None without truncation. `places`: tokens that -1 leaves for the answer.

    `truncation` and `max_length` are transformers' names for it. Raises RequestError.
    """
    name = "truncate_prompt_tokens"
    value = prompt.get(name)
    max_length = prompt.get("max_length")
    if _checked_flag("truncation", prompt.get("truncation")):
        if value is not None:
            raise RequestError(f"{name} and truncation exclude each other; give one", name)
        name = "max_length"
        value = -1 if max_length is None else max_length
    elif max_length is not None:
        raise RequestError(
            f"max_length={max_length!r} has no effect without truncation=True; give both, or truncate_prompt_tokens",
            "max_length",
        )
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not (value == -1 or 1 <= value <= max_model_len)
    ):
        raise RequestError(
            f"{name}={value!r} is out of bounds: 1 to {max_model_len}, or -1 for all that fits",
            name,
        )
    return max_model_len - places if value == -1 else value


def _checked_flag(name: str, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise RequestError(f"{name}={value!r} must be true or false", name)


def checked_ids(values: Any, vocab_size: int) -> I32:
    """Token ids as i32[n]. Raises RequestError: not a flat list of integers, empty, or an id outside the vocabulary."""
    try:
        ids = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise _not_ids("of lists of different lengths") from None
    if ids.size == 0:
        raise RequestError("the prompt is empty; give at least one token id", "prompt")
    if ids.ndim != 1:
        raise _not_ids(f"with {ids.ndim} dimensions; send several prompts as several requests")
    if ids.dtype.kind not in "iu":
        raise _not_ids(f"with a {_odd_one(values)}")
    wrong = (ids < 0) | (ids >= vocab_size)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise RequestError(
            f"token id {int(ids[at])} at position {at} of the prompt is outside the vocabulary: ids go from 0 to "
            f"{vocab_size - 1}",
            "prompt",
        )
    return np.ascontiguousarray(ids, dtype=np.int32)


def _odd_one(values: Any) -> str:
    """A description of the first entry that is no integer of 64 bits."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            return f"{type(value).__name__} ({str(value)[:40]!r})"
        if not -(2**63) <= value < 2**63:
            return "number beyond 64 bits"
    return "value that is no integer"


def _not_ids(what: str) -> RequestError:
    return RequestError(
        f"the prompt is a list {what}; token ids are a flat list of integers", "prompt"
    )
