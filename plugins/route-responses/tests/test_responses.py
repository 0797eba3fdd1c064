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
from tenonry_route_responses.answer import ResponseWriter
from tenonry_route_responses.request import chat_fields

PLAIN = {"model": "m", "input": "hi"}


def test_text_is_a_message_of_the_user():
    assert chat_fields(PLAIN) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


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
    assert chat_fields({**PLAIN, "input": items, "instructions": "s"})["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]


def test_images_stand_among_the_texts_in_questions_and_in_results():
    image = {"type": "input_image", "image_url": "data:x", "detail": "auto", "file_id": None}
    text = {"type": "input_text", "text": "a"}
    shown = {"type": "image_url", "image_url": {"url": "data:x"}}
    items = [
        {"role": "user", "content": [text, image, text]},
        {"type": "function_call_output", "call_id": "1", "output": [image]},
    ]
    part = {"type": "text", "text": "a"}
    assert chat_fields({**PLAIN, "input": items})["messages"] == [
        {"role": "user", "content": [part, shown, part]},
        {"role": "tool", "tool_call_id": "1", "content": [shown]},
    ]


def test_settings_have_other_names():
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    fields = chat_fields(
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
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input.0.type"),
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
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.arguments"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input.0.content"),
        ({"input": [{"type": "reasoning", "content": ["x"]}]}, "input.0.content.0.text"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"stream": "yes"}, "stream"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"tools": {}}, "tools"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "mcp"}]}, "tools.0.type"),
        ({"tools": "f"}, "tools"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_what_cannot_be_honoured_is_named(change, param):
    with pytest.raises(RequestError) as refused:
        chat_fields({**PLAIN, **change})
    assert refused.value.param == param


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
        chat_fields({**PLAIN, **body})


class Answer:
    """An answer of these parts."""

    id, model, created = "chatcmpl-1", "m", 5

    def __init__(self, *parts, finish_reason="stop", version="") -> None:
        self._parts = [
            SimpleNamespace(
                events=events, finish_reason=finish_reason if place == len(parts) - 1 else None,
                stop_reason=None, prompt_tokens=7, cached_tokens=2, completion_tokens=place + 1,
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
        writer = ResponseWriter(answer, body, len)
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
