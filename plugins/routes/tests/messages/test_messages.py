"""Requests of the Messages API as chats, and answers as blocks; the server itself is in the integration tests."""

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
from tenonry_routes.messages.answer import MessageStream, whole_message
from tenonry_routes.messages.blocks import FOREIGN
from tenonry_routes.messages.request import chat_fields


def chat_of(body, ignore=lambda part, reason: None):
    return chat_fields(body, ignore)


PLAIN = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}


def test_plain_request_is_a_plain_chat():
    assert chat_of(PLAIN) == PLAIN


def test_blocks_become_messages_of_a_chat():
    body = {
        **PLAIN,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "?"},
                    {"type": "text", "text": "so"},
                    {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "1", "content": "2"},
                    {"type": "text", "text": "c"},
                ],
            },
        ],
    }
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert chat_of(body)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "user", "content": "c"},
    ]


IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "aGk="},
    "cache_control": {"type": "ephemeral"},
}
FAR = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def test_images_stand_among_the_texts_in_questions_and_in_results():
    content = [
        {"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]},
        {"type": "text", "text": "a"},
        FAR,
        {"type": "text", "text": "b"},
    ]
    body = {**PLAIN, "messages": [{"role": "user", "content": content}]}
    assert chat_of(body)["messages"] == [
        {"role": "tool", "tool_call_id": "1", "content": [SHOWN]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://a/b.png"}},
                {"type": "text", "text": "b"},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_choices(choice, expected):
    tools = [{"name": "f", "input_schema": {"type": "object"}, "description": "d"}]
    fields = chat_of({**PLAIN, "tools": tools, "tool_choice": choice})
    assert fields["tools"] == [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"},
        }
    ]
    assert {name: fields.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": None}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"tools": {}}, "tools"),
        *(
            ({"stop_sequences": value}, "stop_sequences")
            for value in (5, {}, "", [""], [None], ["x"] * 65, ["x" * 1025])
        ),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0.source.type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
            "messages.0.content.0.type",
        ),
        *(
            (
                {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]},
                f"messages.0.content.0.source.{name}",
            )
            for source, name in (
                ({"type": "file", "file_id": "f"}, "type"),
                ({"type": []}, "type"),
                ({"type": "url"}, "url"),
                ({"type": "base64", "media_type": "image/png"}, "data"),
                ({"type": "base64", "media_type": "image/png", "data": ""}, "data"),
                ({"type": "url", "url": " "}, "url"),
                ({"type": "base64", "media_type": "text/html", "data": ""}, "media_type"),
                ({"type": "base64", "media_type": "image/png;x,y", "data": ""}, "media_type"),
            )
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages.0.content.0.source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "documents"}]}]},
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text",
        ),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"system": [{"type": "image"}]}, "system.0.type"),
        *(
            (
                {
                    "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                    "tool_choice": choice,
                },
                "tool_choice",
            )
            for choice in ({"type": "any"}, {"type": "tool", "name": "web_search"})
        ),
        ({"tools": [{"type": 5, "name": "x"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
        ({"tool_choice": {"type": []}}, "tool_choice.type"),
        ({"thinking": {"type": []}}, "thinking.type"),
        ({"output_config": {"effort": {}}}, "output_config.effort"),
        ({"thinking": {"type": "perhaps"}}, "thinking.type"),
        ({"output_config": {"format": {}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"thinking": {"type": "adaptive", "display": "x"}}, "thinking.display"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f"}]}
                ]
            },
            "messages",
        ),
        ({"messages": [{"role": "assistant", "content": ""}]}, "messages"),
        ({"output_config": {"effort": "much"}}, "output_config.effort"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
        ({"thread": "msg_1"}, "thread"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0.type"),
    ],
)
def test_what_cannot_be_honoured_is_named(change, param):
    with pytest.raises(RequestError) as refused:
        chat_of({**PLAIN, **change})
    assert refused.value.param == param


def test_thinking_is_the_templates():
    fields = chat_of({**PLAIN, "thinking": {"type": "enabled", "budget_tokens": 1024}})
    assert fields["chat_template_kwargs"] == {"enable_thinking": True}
    fields = chat_of(
        {**PLAIN, "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}
    )
    assert (fields["include_reasoning"], fields["reasoning_effort"]) == (False, "low")


@pytest.mark.parametrize("where", ["output_config", "output_format"])
def test_form_of_the_answer(where):
    form = {"type": "json_schema", "schema": {"type": "object"}}
    fields = chat_of({**PLAIN, where: {"format": form} if where == "output_config" else form})
    assert fields["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_thinking_that_is_adaptive_or_omitted():
    assert chat_of({**PLAIN, "thinking": {"type": "adaptive"}})["include_reasoning"] is True
    omitted = chat_of({**PLAIN, "thinking": {"type": "adaptive", "display": "omitted"}})
    assert omitted["include_reasoning"] is False


@pytest.mark.parametrize("content", ["So ", [{"type": "text", "text": "So "}]])
def test_last_message_of_the_assistant_is_continued(content):
    messages = [*PLAIN["messages"], {"role": "assistant", "content": content}]
    fields = chat_of({**PLAIN, "messages": messages})
    assert fields["messages"][-1] == {"role": "assistant", "content": "So "}
    assert fields["continue_final_message"] is True


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_empty_message_at_the_end_is_a_new_answer(content):
    messages = [*PLAIN["messages"], {"role": "assistant", "content": content}]
    assert chat_of({**PLAIN, "messages": messages}) == PLAIN


def last_of(content, role="user", ignore=lambda part, reason: None):
    messages = [*PLAIN["messages"], {"role": role, "content": content}, *PLAIN["messages"]]
    return chat_of({**PLAIN, "messages": messages}, ignore)["messages"][1:-1]


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}, "D"),
        (
            {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}},
            "T\nC\nD",
        ),
        ({"type": "document", "source": {"type": "content", "content": "D"}}, "D"),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "D"}]}},
            "D",
        ),
        (
            {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "D"}]},
            "T\nS\nD",
        ),
        ({"type": "compaction", "content": "D", "encrypted_content": "?"}, "D"),
    ],
)  # fmt: skip
def test_blocks_that_are_texts(block, text):
    assert last_of([block]) == [{"role": "user", "content": text}]
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block]}
    assert last_of([result]) == [{"role": "tool", "tool_call_id": "1", "content": text}]


@pytest.mark.parametrize("content", [3, False, [1, "a"], {"a": "ü"}])
def test_results_that_are_values_of_json_are_text(content):
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    assert last_of([result])[0]["content"] == json.dumps(content, ensure_ascii=False)


def test_references_to_tools_are_their_names():
    content = [{"type": "tool_reference", "tool_name": "f"}]
    result = {"type": "tool_result", "tool_use_id": "1", "content": content}
    assert last_of([result])[0]["content"] == "f"


@pytest.mark.parametrize("source", [
    {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}, {"type": "url", "url": "https://a/b.pdf"},
    {"type": "file", "file_id": "f"},
])  # fmt: skip
def test_files_are_left_out_and_the_model_learns_of_it(source):
    ignored = []
    blocks = [{"type": "document", "title": "T", "source": source}, {"type": "text", "text": "?"}]
    (message,) = last_of(blocks, ignore=lambda part, _: ignored.append(part))
    assert ignored == ["messages[].content[] (document)"]
    shown, asked = [part["text"] for part in message["content"]]
    assert ("'T' cannot be read" in shown, asked) == (True, "?")


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_blocks_of_other_servers_are_left_out(kind):
    ignored = []
    blocks = [{"type": kind, "id": "1"}, {"type": "text", "text": "so"}]
    for role in ("user", "assistant"):
        (message,) = last_of(blocks, role, lambda part, _: ignored.append(part))
        assert message == {"role": role, "content": "so"}
    assert set(ignored) == {f"messages[].content[] ({kind})"}


def test_instructions_in_the_middle_stand_before_the_question():
    block = {"type": "mid_conv_system", "content": [{"type": "text", "text": "s"}]}
    assert last_of([{"type": "text", "text": "a"}, block]) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
    ]


def test_arguments_that_were_no_json_are_their_text_again():
    call = {"type": "tool_use", "id": "1", "name": "f", "input": {"INVALID_JSON": '{"a": '}}
    result = {"type": "tool_result", "tool_use_id": "1"}
    messages = [*PLAIN["messages"], {"role": "assistant", "content": [call]}]
    chat = chat_of({**PLAIN, "messages": [*messages, {"role": "user", "content": [result]}]})
    (shown,) = chat["messages"][1]["tool_calls"]
    assert shown["function"]["arguments"] == '{"a": '
    assert chat["messages"][2]["content"] == ""


def test_tools_of_other_servers_are_left_out_and_named():
    ignored = []
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "f"}]
    fields = chat_of({**PLAIN, "tools": tools}, lambda part, _: ignored.append(part))
    assert [tool["function"]["name"] for tool in fields["tools"]] == ["f"]
    assert ignored == ["tools[0] (web_search_20250305)"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "text", "role", "content", "name", "input", "id", "thinking", "tool_use_id", "effort"]
    ), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from([*PLAIN, "system", "tools", "tool_choice", "thinking", "output_config"]),
        JSON,
    )
)
def test_any_json_is_a_chat_or_is_refused(body):
    with contextlib.suppress(RequestError):
        chat_of({**PLAIN, **body})


class Answer:
    """An answer of these parts."""

    id, model = "chatcmpl-1", "m"

    def __init__(self, *parts, finish_reason="stop", stop_reason=None, version="") -> None:
        self.given = [
            SimpleNamespace(
                events=events, finish_reason=finish_reason if place == len(parts) - 1 else None,
                stop_reason=stop_reason, prompt_tokens=7, cached_tokens=2, completion_tokens=place + 1,
                weight_version=version,
            )
            for place, events in enumerate(parts)
        ]  # fmt: skip
        self._ids = iter(range(100))

    def new_call_id(self):
        return f"call_{next(self._ids)}"

    async def parts(self):
        for part in self.given:
            yield part


def streamed(answer):
    async def collect():
        return b"".join([data async for data in MessageStream(answer).events()])

    events = asyncio.run(collect()).decode().split("\n\n")
    assert events.pop() == ""
    found = []
    for event in events:
        kind, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {value['type']}"
        found.append(value)
    return found


PARTS = (
    [ReasoningDelta("h"), ReasoningDelta("m")],
    [TextDelta("so")],
    [],
    [CallStart("f"), CallArguments('{"a":')],
    [CallArguments("1}"), CallEnd(), CallStart("g"), CallArguments("oops"), CallEnd()],
)


def test_stream_opens_one_block_at_a_time():
    events = streamed(Answer(*PARTS, finish_reason="tool_calls"))
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 2
    opened = [event for event in events if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"]["type"]) for event in opened] == [
        (0, "thinking"), (1, "text"), (2, "tool_use"), (3, "tool_use"),
    ]  # fmt: skip
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [
        0,
        1,
        2,
        3,
    ]
    parts = [
        event["delta"]["partial_json"]
        for event in events
        if event.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert parts == ['{"a":', "1}", "oops"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"] == {
        "input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 5,
    }  # fmt: skip


def test_whole_answer_has_the_same_blocks():
    answer = Answer(*PARTS, finish_reason="length")
    message = whole_message(answer, answer.given)
    assert [block["type"] for block in message["content"]] == [
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]
    assert [block["input"] for block in message["content"][2:]] == [
        {"a": 1},
        {"INVALID_JSON": "oops"},
    ]
    assert (message["id"], message["stop_reason"]) == ("msg_1", "max_tokens")


def test_the_version_of_the_weights_is_said_where_they_are_new():
    answer = Answer([TextDelta("so")], version="7")
    assert whole_message(answer, answer.given)["weight_version"] == "7"
    events = streamed(answer)
    assert events[0]["message"]["weight_version"] == events[-2]["weight_version"] == "7"
    assert "weight_version" not in json.dumps(streamed(Answer([TextDelta("so")])))


def test_empty_answer_and_stop_sequence():
    answer = Answer([], stop_reason="###")
    assert whole_message(answer, answer.given)["stop_sequence"] == "###"
    kinds = [event["type"] for event in streamed(Answer([]))]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


def test_answer_without_content_continues():
    turns = [*PLAIN["messages"], {"role": "assistant", "content": None}, *PLAIN["messages"]]
    found = chat_of({**PLAIN, "messages": turns})["messages"]
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert not found[1]["content"]


def test_integer_in_another_spelling():
    assert chat_of({**PLAIN, "max_tokens": 5.0}) == chat_of(PLAIN)
