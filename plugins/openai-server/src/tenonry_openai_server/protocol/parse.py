"""Bytes of a body to a checked request model, or a 400 that names the field, the value and the bound. Front end.

Unknown fields are ignored, as OpenAI's clients expect of a server older than they are, and named once in the log. A
field that is known to change the answer, and that this server cannot honour, is refused: ignoring it would lie.
"""

from __future__ import annotations

import logging
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tenonry_openai_server.errors import APIError, bad_request

logger = logging.getLogger("tenonry.server")

MAX_UNKNOWN_NAMES = 100
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
    "structured_outputs": _STRUCTURED,
    "guided_json": _STRUCTURED,
    "guided_regex": _STRUCTURED,
    "guided_choice": _STRUCTURED,
    "guided_grammar": _STRUCTURED,
    "use_beam_search": "beam search is not available in this server",
    "prompt_embeds": "prompts are text or token ids, not embeddings",
    "audio": "this server answers with text only",
    "modalities": "this server answers with text only",
    "web_search_options": "this server does not search the web",
    "chat_template": "a request cannot bring a chat template; the operator sets it with --chat-template",
}
HARMLESS: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none",),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_unknown_names: set[str] = set()


class Body(BaseModel):
    """Base of all request bodies: exact JSON types, and unknown fields kept apart."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: str | None = None


BodyType = TypeVar("BodyType", bound=BaseModel)


def parse_body(model: type[BodyType], raw: bytes) -> BodyType:
    """Read and check a JSON body. Raises APIError 400."""
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise explain(error) from None
    for name, value in (body.model_extra or {}).items():
        _check_extra(name, value)
    return body


def _check_extra(name: str, value: Any) -> None:
    if name in REFUSED:
        if value and value not in HARMLESS.get(name, ()):
            raise bad_request(f"{name}: {REFUSED[name]}; leave it out", name, "unsupported")
    elif name not in IGNORED and name not in _unknown_names and len(_unknown_names) < MAX_UNKNOWN_NAMES:
        _unknown_names.add(name)
        logger.warning("requests carry the field %r, which is unknown here and ignored", name[:64])


def explain(error: ValidationError) -> APIError:
    """The first problem of a body, in words; further ones are counted."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    param = ".".join(str(part) for part in first["loc"]) or None
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return bad_request(f"the body is not valid JSON: {text.removeprefix('Invalid JSON: ')}", code="invalid_json")
    if first["type"] == "missing":
        text = "is missing"
    elif first["type"] != "value_error":
        text = f"{text[:1].lower()}{text[1:]}, not {_shown(first['input'])}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return bad_request(f"{param}: {text}{more}" if param else f"the body: {text}", param)


def _shown(value: Any) -> str:
    """A rejected value, short enough for a message, without building its whole text."""
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    if isinstance(value, str) and len(value) > 64:
        return f"{value[:64]!r}… of {len(value)} characters"
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
