"""A request of the Responses API as the fields of a chat. Front end.

Nothing is stored: a conversation comes whole in `input`. Unsupported fields that would change the answer are rejected
by name. Unknown names are handled by `names.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_TOKENS
from tenonry_routes.responses.items import messages_of
from tenonry_routes.responses.tools import add_tools
from tenonry_routes.values import Ignore, refuse, whole

PASSED = (
    "model", "temperature", "top_p", "parallel_tool_calls", "seed", "stop", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens", "bad_words", "allowed_token_ids", "extra_args",
    "truncate_prompt_tokens", "add_special_tokens", "priority", "cache_salt", "chat_template_kwargs",
    "structured_outputs",
)  # fmt: skip
# Accounting, storage and hints that change no answer of this server.
HARMLESS = frozenset({
    "store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "max_tool_calls",
})  # fmt: skip
READ = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "tools",
        "tool_choice",
        "reasoning",
        "text",
        "truncation",
        "include",
        "top_logprobs",
        "stream",
        "stream_options",
    }
)
LOGPROBS = "message.output_text.logprobs"
REFUSED = {
    "previous_response_id": "nothing is stored; send the whole conversation as input",
    "conversation": "nothing is stored; send the whole conversation as input",
    "background": "answers are made while the client waits",
    "prompt": "there are no stored prompts; send the text",
}


def chat_fields(body: Any, ignore: Ignore) -> dict[str, Any]:
    """Convert a request to a chat. `ignore` receives omitted parts. Raises RequestError that names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    _check_values(body)
    if body.get("truncation") == "auto":
        ignore("truncation", "an input that is too long is refused, not cut")
    fields: dict[str, Any] = {name: body[name] for name in PASSED if body.get(name) is not None}
    system = body.get("instructions")
    if system is not None and not isinstance(system, str):
        refuse("instructions", "must be a text")
    lead = [{"role": "system", "content": system}] if system else []
    fields["messages"] = [*lead, *messages_of(body.get("input"), ignore)]
    if body.get("max_output_tokens") is not None:
        fields["max_tokens"] = _count(body["max_output_tokens"])
    add_tools(fields, body, ignore)
    _add_reasoning(fields, body.get("reasoning"))
    _add_format(fields, body.get("text"))
    _add_logprobs(fields, body, ignore)
    return fields


def _check_values(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in REFUSED and value not in (None, False, 0, ""):
            code = (
                "previous_response_not_found" if name == "previous_response_id" else "unsupported"
            )
            refuse(name, REFUSED[name], code)
    if not isinstance(body.get("stream"), bool | None):
        refuse("stream", "must be true or false")
    if not isinstance(body.get("stream_options"), dict | None):
        refuse("stream_options", "must be an object")
    if body.get("truncation") not in (None, "disabled", "auto"):
        refuse("truncation", "must be disabled or auto")


def _count(value: Any) -> int:
    value = whole(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOKENS:
        refuse("max_output_tokens", f"must be a number of 1 to {MAX_TOKENS}, not {value!r:.40}")
    return int(value)


def _add_reasoning(fields: dict[str, Any], reasoning: Any) -> None:
    if reasoning is None:
        return
    if not isinstance(reasoning, dict):
        refuse("reasoning", "must be an object")
    if reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]


def _add_format(fields: dict[str, Any], text: Any) -> None:
    """`text.format` is `response_format` of a chat, with the schema one level higher."""
    form = text.get("format") if isinstance(text, dict) else None
    if text is not None and not isinstance(text, dict):
        refuse("text", "must be an object")
    if form is None:
        return
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        refuse("text.format.type", "must be text, json_object or json_schema")
    if kind == "json_schema":
        names = ("name", "description", "schema", "strict")
        schema = {name: form[name] for name in names if form.get(name) is not None}
        fields["response_format"] = {"type": kind, "json_schema": schema}
    elif kind == "json_object":
        fields["response_format"] = {"type": kind}


def _add_logprobs(fields: dict[str, Any], body: Mapping[str, Any], ignore: Ignore) -> None:
    """Handle log-probabilities in `include`; its other values belong to tools of OpenAI's servers."""
    include = [] if body.get("include") is None else body["include"]
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        refuse("include", "must be a list of texts")
    for name in include:
        if name != LOGPROBS:
            ignore(f"include ({name:.64})", "answers hold nothing of the kind")
    top = body.get("top_logprobs")
    if LOGPROBS in include:
        fields["logprobs"] = True
        if top is not None:
            fields["top_logprobs"] = top
    elif top not in (None, 0):
        refuse("top_logprobs", f'needs include: ["{LOGPROBS}"]')
