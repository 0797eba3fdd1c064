"""A request of the Messages API as the fields of a chat. Front end.

Unsupported fields that would change the answer are rejected by name. Unknown names are handled by `names.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from tenonry_routes.messages.blocks import BlockReader
from tenonry_routes.values import Ignore, refuse, text_of, whole

PASSED = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "bad_words", "allowed_token_ids", "extra_args", "truncate_prompt_tokens",
    "add_special_tokens", "priority", "cache_salt", "chat_template_kwargs", "structured_outputs",
)  # fmt: skip
# Accounting, and hints that change no answer of this server.
HARMLESS = frozenset({
    "metadata", "service_tier", "betas", "inference_geo", "anthropic_version", "cache_control", "user_profile_id",
})  # fmt: skip
READ = frozenset({
    "max_tokens", "messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config",
    "output_format",
})  # fmt: skip
THREAD_NOT_FOUND = "thread_not_found"  # with this code clients send the whole conversation again
EFFORT = frozenset({"low", "medium", "high", "xhigh", "max"})


def chat_fields(body: Any, ignore: Ignore, *, needs_max_tokens: bool = True) -> dict[str, Any]:
    """Convert a request to a chat. `ignore` receives omitted parts. Raises RequestError that names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    fields: dict[str, Any] = {
        name: body[name] for name in PASSED if name != "stream" and body.get(name) is not None
    }
    if not isinstance(body.get("model"), str):
        refuse("model", "is missing, or no text")
    if not isinstance(body.get("stream"), bool | None):
        refuse("stream", "must be true or false")
    _check_thread(body.get("thread"))
    if needs_max_tokens or body.get("max_tokens") is not None:
        fields["max_tokens"] = _max_tokens(body.get("max_tokens"))
    blocks = BlockReader(ignore)
    fields["messages"] = [
        *blocks.system(body.get("system")),
        *blocks.messages(body.get("messages")),
    ]
    _continue_last(fields)
    stop = body.get("stop_sequences")
    if stop is not None:
        _check_stop(stop)
        fields["stop"] = stop
    _add_tools(fields, body, ignore)
    _add_thinking(fields, body)
    _add_output(fields, body)
    return fields


def field_names(fields: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, str]:
    """Paths of a request's fields by those of the chat's `fields` that were made of them."""
    places = {tool.get("name"): place for place, tool in enumerate(body.get("tools") or ())}
    form = "output_format" if body.get("output_format") is not None else "output_config.format"
    names = {"response_format.json_schema": form}
    for index, tool in enumerate(fields.get("tools", ())):
        place = places.get(tool["function"].get("name"), index)
        for path in (f"tools[{index}]", f"tools.{index}"):
            own = path.replace(str(index), str(place))
            names[f"{path}.function.parameters"] = f"{own}.input_schema"
            names[f"{path}.function"] = own
    return names


def _check_thread(value: Any) -> None:
    """Raises RequestError for a request that leaves earlier messages out. One that has all of them is answered."""
    if value is not None and (not isinstance(value, dict) or value.get("type") != "create"):
        refuse(
            "thread", "nothing is stored; send the whole conversation as messages", THREAD_NOT_FOUND
        )


def _check_stop(value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    is_valid = isinstance(texts, list) and len(texts) <= MAX_STOP_STRINGS
    if not is_valid or not all(_is_stop(text) for text in texts):
        refuse(
            "stop_sequences",
            f"must be a list of at most {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_CHARS} characters",
        )


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_STOP_STRING_CHARS


def _max_tokens(value: Any) -> int:
    value = whole(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse("max_tokens", f"must be a number of at least 1, not {value!r:.40}")
    return int(value)


def _continue_last(fields: dict[str, Any]) -> None:
    """An assistant's message at the end is the beginning of the answer."""
    last = fields["messages"][-1]
    if last["role"] != "assistant":
        return
    if last.get("tool_calls"):
        refuse(
            "messages", "the last message calls tools; send their results, or leave the calls out"
        )
    if last["content"] or last.get("reasoning_content"):
        fields["continue_final_message"] = True
    else:
        fields["messages"].pop()
        if not fields["messages"]:
            refuse("messages", "holds no text")


def _add_tools(fields: dict[str, Any], body: Mapping[str, Any], ignore: Ignore) -> None:
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        refuse("tools", "must be a list")
    found = []
    left_out = set()
    for place, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            refuse(f"tools.{place}", "must be an object")
        kind = tool.get("type")
        if kind in (None, "custom"):
            found.append(_tool(tool))
        elif kind == "function":
            refuse(f"tools.{place}.type", "'function' is OpenAI's form; send name and input_schema")
        elif isinstance(kind, str):
            ignore(f"tools[{place}] ({kind})", "only Anthropic's servers and models have this tool")
            left_out.add(tool.get("name") if isinstance(tool.get("name"), str) else kind)
        else:
            refuse(f"tools.{place}.type", "must be custom, or left out")
    if found:
        fields["tools"] = found
    choice = body.get("tool_choice")
    if choice is not None:
        _add_choice(fields, choice, left_out)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
    function |= {
        name: tool[name] for name in ("description", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def _add_choice(fields: dict[str, Any], choice: Any, left_out: set[str]) -> None:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        name = text_of(choice, "tool_choice", "name")
        if name in left_out:
            refuse("tool_choice", f"{name!r:.40} is a tool that this server does not have")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif kind in ("auto", "any", "none"):
        if kind == "any" and left_out and "tools" not in fields:
            refuse("tool_choice", "demands a call, and this server has none of the tools")
        fields["tool_choice"] = "required" if kind == "any" else kind
    else:
        refuse("tool_choice.type", "must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False


def _add_thinking(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    """Thinking is controlled by the chat template; its budget is a hint, and `max_tokens` the bound."""
    thinking = body.get("thinking")
    if thinking is None:
        return
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind not in ("enabled", "disabled", "adaptive"):
        refuse("thinking.type", "must be enabled, adaptive or disabled")
    display = thinking.get("display")
    if display not in (None, "summarized", "omitted"):
        refuse("thinking.display", "must be summarized or omitted")
    values = fields.get("chat_template_kwargs")
    values = values if isinstance(values, dict) else {}
    fields["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **values}
    fields["include_reasoning"] = kind != "disabled" and display != "omitted"


def _add_output(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    output = {} if body.get("output_config") is None else body["output_config"]
    if not isinstance(output, dict):
        refuse("output_config", "must be an object")
    effort = output.get("effort")
    if effort is not None:
        if effort not in tuple(EFFORT):
            refuse("output_config.effort", f"must be one of {', '.join(sorted(EFFORT))}")
        fields["reasoning_effort"] = effort
    for where, form in (
        ("output_config.format", output.get("format")),
        ("output_format", body.get("output_format")),
    ):
        if form is not None:
            fields["response_format"] = _format(form, where)


def _format(form: Any, where: str) -> dict[str, Any]:
    """The form of the answer, as a chat's `response_format`."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind != "json_schema":
        refuse(f"{where}.type", "must be json_schema")
    if not isinstance(form.get("schema"), dict):
        refuse(f"{where}.schema", "must be a JSON schema, an object")
    return {"type": kind, "json_schema": {"name": "answer", "schema": form["schema"]}}
