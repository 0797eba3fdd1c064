"""POST /v1/chat/completions over the fake engine."""

from __future__ import annotations

import json

import pytest
from openai_server_fakes import ANSWER

from tenonry.errors import EngineGenerateError

CALLED = {"name": "add", "arguments": "{}"}


def test_chat_has_openais_shape(api):
    answer = api.chat("hi", max_tokens=5)
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0, "message": {"role": "assistant", "content": ANSWER[:5], "refusal": None}, "logprobs": None,
        "finish_reason": "length", "stop_reason": None,
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] == 5


def test_chat_is_rendered_by_the_io_processor(api):
    body = {
        "messages": [
            {"role": "developer", "content": "be short"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                "name": "Ann",
            },
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": CALLED}]},
            {"role": "tool", "content": "7", "tool_call_id": "1"},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert api.post("/v1/chat/completions", body).status_code == 200
    messages, kwargs = api.engine.io_processor.seen
    assert messages == [
        {"role": "system", "content": "be short"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            "name": "Ann",
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": CALLED}],
        },
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    assert kwargs == {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    (call,) = api.engine.received
    assert call.prompt["add_special_tokens"] is False
    assert call.params.max_tokens is None  # the rest of the context


def test_final_message_can_be_continued(api):
    api.chat("hi", continue_final_message=True)
    _, kwargs = api.engine.io_processor.seen
    assert (kwargs["add_generation_prompt"], kwargs["continue_final_message"]) == (False, True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 4),
    ],
)
def test_length_has_two_names(fields, expected, api):
    assert api.chat(**fields)["usage"]["completion_tokens"] == expected


def test_stream_begins_with_the_role_and_ends_with_done(api):
    events = api.stream(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}
    )
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == ANSWER
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)


@pytest.mark.parametrize("parser", ["none", "think+hermes"])
def test_every_chunk_has_usage_where_asked_that_of_the_role_too(parser, make_api):
    api = make_api(output_parser=parser)
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "n": 2}
    events = api.stream("/v1/chat/completions", {**body, "stream_options": options})
    chunks = [json.loads(event) for event in events[:-1]]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 6)
    roles = [chunk for chunk in chunks[:-1] if "role" in chunk["choices"][0]["delta"]]
    assert [chunk["usage"]["prompt_tokens"] > 0 for chunk in roles] == [True, True]


def test_stream_of_two_answers_keeps_them_apart(api):
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "n": 2,
        "return_token_ids": True,
        "max_tokens": 30,
    }
    chunks = [json.loads(event) for event in api.stream("/v1/chat/completions", body)[:-1]]
    for index in range(2):
        choices = [
            choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index
        ]
        assert choices[0]["delta"]["role"] == "assistant"
        assert "".join(choice["delta"]["content"] for choice in choices) == ANSWER
        assert [i for choice in choices for i in choice.get("token_ids", [])] == [
            ord(c) for c in ANSWER
        ]
    assert chunks[0]["prompt_token_ids"] == [ord(c) for c in "user: hi\nassistant:"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[2:])


def test_logprobs_have_the_shape_of_chats(api):
    answer = api.chat(max_tokens=1, logprobs=True, top_logprobs=2)
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "H", "logprob": -0.5, "bytes": [72],
                "top_logprobs": [
                    {"token": "H", "logprob": -0.5, "bytes": [72]},
                    {"token": "=", "logprob": -1.0, "bytes": [61]},
                ],
            }
        ],
        "refusal": None,
    }  # fmt: skip
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "logprobs": True}
    last = json.loads(api.stream("/v1/chat/completions", body)[-2])
    assert last["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    ids = api.chat(max_tokens=1, logprobs=True, return_tokens_as_token_ids=True)
    assert ids["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:72"


def test_prompt_ids_and_logprobs_of_a_chat_stand_at_the_top(api):
    answer = api.chat("hi", max_tokens=1, return_token_ids=True, prompt_logprobs=0)
    assert answer["prompt_token_ids"] == [ord(c) for c in "user: hi\nassistant:"]
    assert answer["prompt_logprobs"][0] is None
    assert answer["choices"][0]["token_ids"] == [72]
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "prompt_logprobs": 0,
        "n": 2,
    }
    chunks = [json.loads(event) for event in api.stream("/v1/chat/completions", body)[:-1]]
    assert [chunk["prompt_logprobs"] for chunk in chunks if "prompt_logprobs" in chunk] == [
        answer["prompt_logprobs"]
    ]


def test_model_without_chat_template_says_so(api):
    api.engine.io_processor.has_template = False
    response = api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}], "--output-parser"),
        ("functions", [{"name": "f"}], "tools"),
        ("guided_decoding_backend", "outlines", "--grammar-backend"),
        ("modalities", ["text", "audio"], "text only"),
        ("chat_template", "{{ messages }}", "--chat-template"),
        ("use_beam_search", True, "beam search"),
        ("structured_output", {"json": {}}, "structured_outputs"),
        ("logits_processors", ["m:f"], "--worker-option"),
        ("documents", [{"text": "x"}], "messages"),
        ("echo", True, "/v1/completions"),
        ("structural_tag", "{}", "not available"),
        ("regex", "a+", "structured_outputs"),
        ("lora_request", {"lora_name": "a"}, "adapter"),
        ("detokenize", False, "return_token_ids"),
        ("logprob_token_ids", [5], "most likely"),
        ("best_of", 4, "/v1/completions"),
    ],
)
def test_field_that_cannot_be_honoured_is_refused(field, value, word, api):
    body = {"messages": [{"role": "user", "content": "hi"}], field: value}
    response = api.post("/v1/chat/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert error["code"] == "unsupported"
    assert word in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []}, {"tools": None}, {"tool_choice": "none"}, {"response_format": {"type": "text"}},
        {"modalities": ["text"]}, {"user": "u", "metadata": {"a": "b"}, "store": False},
        {"prediction": {"type": "content", "content": "x"}}, {"service_tier": "auto", "safety_identifier": "s"},
        {"tool_choice": "auto"}, {"reasoning_effort": "low"}, {"include_reasoning": True},
        {"best_of": 1}, {"best_of": None}, {"detokenize": True}, {"structural_tag": None}, {"length_penalty": 1.0},
    ],
)  # fmt: skip
def test_fields_that_change_nothing_are_ignored(fields, api):
    api.chat(**fields)


def test_error_of_the_engine_fails_the_one_request(api):
    api.engine.after = EngineGenerateError("boom")
    response = api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 500
    assert "boom" not in response.text


def test_broken_io_processor_fails_the_one_request(api, monkeypatch):
    def render_chat(*_args, **_kwargs):
        raise ZeroDivisionError("at 0x7f00aa")

    monkeypatch.setattr(api.engine.io_processor, "render_chat", render_chat)
    response = api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "plugin_failed"
    assert "0x" not in response.text
