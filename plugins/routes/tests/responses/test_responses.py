"""Requests of the Responses API as chats, and answers as items; the server itself is in the integration tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry.errors import RequestError
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_routes.responses.answer import ResponseWriter
from tenonry_routes.responses.request import chat_fields
from tenonry_routes.responses.tools import own_names

PLAIN = {"model": "m", "input": "hi"}


def chat_of(body, ignored=None):
    found = [] if ignored is None else ignored
    return chat_fields(body, lambda part, reason: found.append(part))


def messages_of(*items, ignored=None):
    return chat_of({**PLAIN, "input": list(items)}, ignored)["messages"]


def test_text_is_a_message_of_the_user():
    assert chat_of(PLAIN) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_items_of_one_turn_are_one_message():
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so"}],
        },
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [{"type": "input_text", "text": "2"}],
        },
    ]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat_of({**PLAIN, "input": items, "instructions": "s"})["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]


def test_images_stand_among_the_texts_in_questions_and_in_results():
    image = {"type": "input_image", "image_url": "data:x", "detail": "auto", "file_id": None}
    text = {"type": "input_text", "text": "a"}
    shown = {"type": "image_url", "image_url": {"url": "data:x", "detail": "auto"}}
    items = [
        {"role": "user", "content": [text, image, text]},
        {"type": "function_call_output", "call_id": "1", "output": [image]},
    ]
    part = {"type": "text", "text": "a"}
    assert chat_of({**PLAIN, "input": items})["messages"] == [
        {"role": "user", "content": [part, shown, part]},
        {"role": "tool", "tool_call_id": "1", "content": [shown]},
    ]


def test_settings_have_other_names():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    fields = chat_of(
        {
            **PLAIN,
            "max_output_tokens": 9,
            "reasoning": {"effort": "low"},
            "text": {"format": schema, "verbosity": "low"},
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "tool_choice": {"type": "function", "name": "f"},
            "store": True,
            "include": ["reasoning.encrypted_content"],
        }
    )
    assert fields["max_tokens"] == 9
    assert fields["reasoning_effort"] == "low"
    assert fields["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    function = {"name": "f", "parameters": {"type": "object"}}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["hi"]}, "input.0"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input"),
        ({"input": [{"type": "input_text", "text": "hi"}]}, "input.0.type"),
        ({"input": [{"type": "mesage", "role": "user", "content": "hi"}]}, "input.0.type"),
        ({"input": [{"type": 5}]}, "input.0.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ""}]}]},
            "input.0.content.0.image_url",
        ),
        ({"input": [{"type": "local_shell_call", "call_id": "1"}]}, "input.0.action"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": ""}]}, "input.0.call_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input.0.content.0.file_id",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input.0.content.0.type",
        ),
        ({"input": [{"type": "function_call", "name": 5, "call_id": "1"}]}, "input.0.name"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input.0.content"),
        ({"input": [{"type": "reasoning", "content": ["x"]}]}, "input.0.content.0.text"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"stream": "yes"}, "stream"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"tools": {}}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": 5}]}, "tools.0.type"),
        ({"tools": [5]}, "tools.0"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "tools.0.tools"),
        ({"tools": "f"}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [{"type": "custom", "name": "p"}],
                "tool_choice": {"type": "custom", "name": "p"},
            },
            "tool_choice.type",
        ),
        (
            {
                "tools": [{"type": "function", "name": "f"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "mcp"}],
                },
            },
            "tool_choice",
        ),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"truncation": "perhaps"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_what_cannot_be_honoured_is_named(change, param):
    with pytest.raises(RequestError) as refused:
        chat_of({**PLAIN, **change})
    assert refused.value.param == param


CALLS = {
    "function_call": ({"name": "f", "arguments": '{"a": '}, "f", '{"a": '),
    "custom_tool_call": ({"name": "patch", "input": "*** x"}, "patch", '{"input": "*** x"}'),
    "local_shell_call": (
        {"action": {"type": "exec", "command": ["ls"]}}, "local_shell", '{"type": "exec", "command": ["ls"]}',
    ),
    "shell_call": ({"action": {"commands": ["ls"]}}, "shell", '{"commands": ["ls"]}'),
    "apply_patch_call": (
        {"operation": {"type": "delete_file", "path": "a"}}, "apply_patch", '{"type": "delete_file", "path": "a"}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("output", ["2", [{"type": "input_text", "text": "2"}]])
def test_calls_of_every_tool_at_the_client_are_calls_of_functions(kind, output):
    fields, name, arguments = CALLS[kind]
    item = {"type": kind, "call_id": "1", **fields}
    result = {"type": f"{kind}_output", "call_id": "1", "output": output}
    call, answer = messages_of(item, result)
    function = {"name": name, "arguments": arguments}
    assert call["tool_calls"] == [{"id": "1", "type": "function", "function": function}]
    if kind in ("shell_call", "apply_patch_call") and output != "2":
        assert json.loads(answer["content"]) == output
    else:
        assert answer == {"role": "tool", "tool_call_id": "1", "content": "2"}


def test_results_of_local_shells_name_their_call_by_its_id():
    action = {"type": "exec", "command": ["ls"]}
    call, result = messages_of(
        {"type": "local_shell_call", "id": "1", "action": action},
        {"type": "local_shell_call_output", "id": "1", "output": "x"},
    )
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "1"


def test_result_of_a_patch_without_a_text_is_its_status():
    operation = {"type": "delete_file", "path": "a.py"}
    call = {"type": "apply_patch_call", "call_id": "1", "operation": operation}
    result = {"type": "apply_patch_call_output", "call_id": "1", "status": "failed"}
    assert messages_of(call, result)[1]["content"] == "failed"
    assert messages_of(call, {**result, "output": "no such file"})[1]["content"] == "no such file"


def test_answers_and_results_may_hold_nothing():
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "1", "output": None}
    found = messages_of({"role": "assistant", "content": None}, call, result)
    assert [message["role"] for message in found] == ["assistant", "tool"]
    assert found[1]["content"] == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(None, ""), ({"a": 1}, '{"a": 1}'), ("{", "{"), ([], "[]"), (3, "3"), (True, "true")],
)
def test_arguments_of_earlier_calls_are_text(arguments, shown):
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": arguments}
    result = {"type": "function_call_output", "call_id": "1", "output": {"b": 2}}
    turn, answer = messages_of(call, result)
    assert turn["tool_calls"][0]["function"]["arguments"] == shown
    assert answer["content"] == '{"b": 2}'


@pytest.mark.parametrize("output", [3, True, ["a", 2], {"a": "ü"}])
def test_results_that_are_values_of_json_are_text(output):
    call = {"type": "function_call", "call_id": "c", "name": "f"}
    result = {"type": "function_call_output", "call_id": "c", "output": output}
    assert messages_of(call, result)[-1]["content"] == json.dumps(output, ensure_ascii=False)


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
@pytest.mark.parametrize(
    "readable", [{"summary": "We met."}, {"content": [{"type": "text", "text": "We met."}]}]
)
def test_compaction_with_a_text_is_a_message(kind, readable):
    assert messages_of({"type": kind, "encrypted_content": "x", **readable}) == [
        {"role": "user", "content": "We met."}
    ]


def test_integer_in_another_spelling():
    whole = chat_of({**PLAIN, "max_output_tokens": 9})
    assert chat_of({**PLAIN, "max_output_tokens": 9.0}) == whole


def test_call_that_a_server_made_has_its_result():
    item = {"type": "mcp_call", "id": "1", "name": "f", "arguments": "{}", "server_label": "s"}
    assert messages_of({**item, "output": "2"})[1]["content"] == "2"
    assert messages_of({**item, "error": {"a": 1}})[1]["content"] == '{"a": 1}'


@pytest.mark.parametrize("item", [
    {"type": "web_search_call", "id": "1", "action": {"type": "search"}}, {"type": "item_reference", "id": "1"},
    {"id": "1"}, {"type": "compaction", "encrypted_content": "x"}, {"type": "ghost_snapshot"},
    {"type": "compaction", "summary": [], "encrypted_content": "x"}, {"type": "compaction_summary", "summary": None},
    {"type": "additional_tools", "role": "developer", "tools": []}, {"type": "image_generation_call", "id": "1"},
])  # fmt: skip
def test_items_that_only_their_server_reads_are_left_out(item):
    ignored = []
    assert messages_of({"role": "user", "content": "hi"}, item, ignored=ignored) == [
        {"role": "user", "content": "hi"}
    ]
    assert ignored == [f"input[] ({item.get('type', 'item_reference')})"]


def test_reasoning_of_one_turn_adds_up():
    def reasoning(text, **fields):
        content = [{"type": "reasoning_text", "text": text}] if text else []
        return {"type": "reasoning", "summary": [], "content": content, **fields}

    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    (turn,) = messages_of(reasoning("a"), call, reasoning("b"))
    assert turn["reasoning_content"] == "a\nb"
    summary = [{"type": "summary_text", "text": "s"}]
    assert messages_of(reasoning("", summary=summary))[0]["reasoning_content"] == "s"
    assert messages_of(reasoning("a", summary=summary))[0]["reasoning_content"] == "a"
    ignored = []
    messages_of(call, reasoning("", encrypted_content="x"), ignored=ignored)
    messages_of(reasoning("", summary=summary, encrypted_content="x"), ignored=ignored)
    assert ignored == ["input[].encrypted_content"] * 2


def test_parts_stay_parts():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    shown = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for role in ("user", "developer"):
        assert messages_of({"role": role, "content": parts})[0]["content"] == shown
    assert messages_of(
        {"role": "assistant", "content": parts[:1]}, {"role": "assistant", "content": parts[1:]}
    ) == [{"role": "assistant", "content": shown}]


def test_tools_that_are_no_functions_are_left_out_and_named():
    ignored = []
    tools = [
        {"type": "web_search"},
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "p"},
    ]
    fields = chat_of(
        {**PLAIN, "tools": tools, "tool_choice": "auto", "truncation": "auto"}, ignored
    )
    assert fields["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert ignored == ["truncation", "tools[0] (web_search)", "tools[2] (custom)"]


SPACES = [
    {"type": "namespace", "name": "mcp__files__", "description": "d", "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object"}}, {"type": "custom", "name": "p"},
    ]},
    {"type": "function", "name": "read"},
]  # fmt: skip


def test_functions_in_a_namespace_have_joined_names():
    ignored = []
    choice = {"type": "function", "name": "read", "namespace": "mcp__files__"}
    fields = chat_of({**PLAIN, "tools": SPACES, "tool_choice": choice}, ignored)
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["mcp__files__read", "read"]
    assert fields["tool_choice"]["function"]["name"] == "mcp__files__read"
    assert ignored == ["tools[0].tools[1] (custom)"]
    item = {"type": "function_call", "call_id": "1", "name": "read", "arguments": "{}"}
    named = messages_of({**item, "namespace": "mcp__files__"}, item)[0]["tool_calls"]
    assert [call["function"]["name"] for call in named] == ["mcp__files__read", "read"]


def test_calls_in_a_namespace_are_answered_by_their_own_names():
    answer = Answer([CallStart("mcp__files__read"), CallEnd(), CallStart("read"), CallEnd()])
    items = streamed(answer, {**PLAIN, "tools": SPACES})[-1]["response"]["output"]
    assert [(item.get("namespace"), item["name"]) for item in items] == [
        ("mcp__files__", "read"),
        (None, "read"),
    ]


def test_choice_among_some_of_the_tools():
    tools = [{"type": "function", "name": name} for name in "fgh"]
    listed = [{"type": "function", "name": "g"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": listed}
    fields = chat_of({**PLAIN, "tools": tools, "tool_choice": choice})
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["g"]
    assert fields["tool_choice"] == "required"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "text", "role", "content", "name", "call_id", "arguments", "output", "format", "effort", "summary"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["input", "instructions", "tools", "tool_choice", "reasoning", "text"]),
        JSON,
    )
)
def test_any_json_is_a_chat_or_is_refused(body):
    with contextlib.suppress(RequestError):
        chat_of({**PLAIN, **body})


class Answer:
    """An answer of these parts."""

    id, model, created = "chatcmpl-1", "m", 5

    def __init__(self, *parts, finish_reason="stop", version="") -> None:
        self._parts = [
            SimpleNamespace(
                events=events, finish_reason=finish_reason if place == len(parts) - 1 else None,
                stop_reason=None, prompt_tokens=7, cached_tokens=2, completion_tokens=place + 1, logprobs=(),
                weight_version=version,
            )
            for place, events in enumerate(parts)
        ]  # fmt: skip

    def new_call_id(self):
        return "call_1"

    async def parts(self):
        for part in self._parts:
            yield part


PARTS = (
    [ReasoningDelta("hm")],
    [TextDelta("so"), CallStart("f"), CallArguments("{"), CallArguments("}"), CallEnd()],
    [TextDelta("and")],
)


def streamed(answer, body=PLAIN):
    async def collect():
        writer = ResponseWriter(answer, body, len, own_names(body.get("tools")))
        return b"".join([data async for data in writer.events()])

    events = asyncio.run(collect()).decode().split("\n\n")
    assert events.pop() == ""
    found = []
    for event in events:
        kind, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def test_items_follow_each_other():
    events = streamed(Answer(*PARTS), {**PLAIN, "temperature": 0.5})
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [(event["output_index"], event["item"]["type"]) for event in added] == [
        (0, "reasoning"), (1, "message"), (2, "function_call"), (3, "message"),
    ]  # fmt: skip
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    assert [item["status"] for item in response["output"]] == ["completed"] * 4
    assert response["output"][2]["arguments"] == "{}"
    assert (response["temperature"], response["id"]) == (0.5, "resp_1")
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert response["usage"]["total_tokens"] == 10


def test_the_version_of_the_weights_is_said_where_they_are_new():
    events = streamed(Answer([TextDelta("so")], version="7"))
    assert events[-1]["response"]["weight_version"] == "7"
    assert "weight_version" not in json.dumps(streamed(Answer([TextDelta("so")])))


def test_answer_that_was_cut_off_within_a_text():
    events = streamed(Answer([TextDelta("so")], finish_reason="length"))
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_answer_that_the_server_ended_has_failed():
    assert streamed(Answer([], finish_reason="abort"))[-1]["type"] == "response.failed"
