"""Fields of the packaged routes are checked by the server's rules, at every level."""

from __future__ import annotations

import json
from typing import Any

import pytest

HEADER = "x-tenonry-ignored"
MESSAGES = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, Any] = {
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses": {"input": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
}


@pytest.fixture
def routes(make_api):
    return make_api(route=("messages", "responses", "pooling"))


def names(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    text = response.headers.get(HEADER, "")
    return text.split(", ") if text else []


def error_of(response: Any) -> str:
    assert response.status_code == 400, response.text
    return response.json()["error"]["message"]


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_ignored_and_named(path, routes):
    body = {
        **BODIES[path],
        "num_ctx": 5,
        "zebra": None,
        "user": "u",
        "cache_control": {"type": "ephemeral"},
    }
    assert names(routes.post(path, body)) == ["num_ctx"]
    assert routes.engine.num_ignored_fields == 1


@pytest.mark.parametrize("path", BODIES)
def test_or_refused_where_the_operator_says_so(path, make_api):
    api = make_api(route=("messages", "responses", "pooling"), unknown_fields="refuse")
    assert "num_ctx: this request has no such field" in error_of(
        api.post(path, {**BODIES[path], "num_ctx": 5})
    )
    assert names(api.post(path, {**BODIES[path], "num_ctx": None})) == []


@pytest.mark.parametrize(
    ("path", "name", "nearest"),
    [
        ("/v1/messages", "max_token", "max_tokens"),
        ("/v1/messages", "temprature", "temperature"),
        ("/v1/responses", "max_output_token", "max_output_tokens"),
        ("/v1/embeddings", "dimension", "dimensions"),
        ("/v1/rerank", "top_k", "top_n"),
        ("/v1/score", "text_3", "text_1"),
    ],
)
def test_misspelt_fields_are_refused(path, name, nearest, routes):
    message = error_of(routes.post(path, {**BODIES[path], name: 5}))
    assert f"{name}: this request has no such field; did you mean {nearest}?" in message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"n": 2}),
        ("/v1/messages", {"response_format": {"type": "json_object"}}),
        ("/v1/messages", {"use_beam_search": True}),
        ("/v1/messages", {"max_output_tokens": 5}),
        ("/v1/messages", {"stop": "a"}),
        ("/v1/responses", {"max_tokens": 5}),
        ("/v1/responses", {"messages": []} | {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"logprobs": True}),
        ("/v1/responses", {"previous_response": {"id": "r"}}),
        ("/v1/responses", {"mm_processor_kwargs": {"a": 1}}),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"embed_dtype": "float16"}),
        ("/v1/embeddings", {"truncation_side": "left"}),
        ("/v1/rerank", {"use_activation": False}),
        ("/v1/score", {"add_special_tokens": False}),
    ],
)
def test_fields_that_would_change_an_answer_are_refused(path, fields, routes):
    (name,) = fields
    assert error_of(routes.post(path, {**BODIES[path], **fields})).startswith(f"{name}: ")
    assert not routes.engine.received


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"n": 1, "chat_template_kwargs": {"a": 1}, "seed": 5, "min_p": 0.1}),
        ("/v1/responses", {"n": 1, "logit_bias": {"5": 1}, "stream_options": {"include_obfuscation": False}}),
        ("/v1/embeddings", {"truncation_side": "right", "add_special_tokens": True, "embed_dtype": "float32",
                            "cache_salt": "s", "encoding_format": None, "dimensions": None}),
    ],
)  # fmt: skip
def test_fields_that_are_served_or_ask_for_nothing_are_not_named(path, fields, routes):
    assert names(routes.post(path, {**BODIES[path], **fields})) == []


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


@pytest.mark.parametrize(
    ("path", "fields", "found"),
    [
        ("/v1/messages", message(id="m"), ["messages[].id"]),
        ("/v1/messages", message(content=[{"type": "text", "text": "x", "citations": [{"a": 1}]}] * 2),
         ["messages[].content[].citations"]),
        ("/v1/messages",
         message(content=[{"type": "tool_result", "tool_use_id": "1", "content": "x", "is_error": False}]), []),
        ("/v1/messages", {"system": [{"type": "text", "text": "x", "cache_control": {"type": "a"}, "zebra": 1}]},
         ["system[].zebra"]),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ["thinking.budget_tokens"]),
        ("/v1/responses", {"reasoning": {"effort": "low", "summary": "auto"}}, ["reasoning.summary"]),
        ("/v1/responses", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, ["text.verbosity"]),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "zebra": 1}],
                                      "phase": "x"}]},
         ["input[].phase", "input[].content[].zebra"]),
        ("/v1/responses", {"stream_options": {"include_obfuscation": True}}, ["stream_options.include_obfuscation"]),
        ("/v1/rerank", {"documents": [{"text": "a", "title": "b"}]}, ["documents[].title"]),
    ],
)  # fmt: skip
def test_objects_in_a_body_are_no_exception(path, fields, found, routes):
    assert names(routes.post(path, {**BODIES[path], **fields})) == found


def test_streams_name_them_too(routes):
    for path in ("/v1/messages", "/v1/responses"):
        response = routes.post(path, {**BODIES[path], "stream": True, "num_ctx": 5})
        assert response.headers["content-type"].startswith("text/event-stream")
        assert names(response) == ["num_ctx"]


@pytest.mark.parametrize("path", BODIES)
def test_names_are_bounded(path, routes):
    body = {**BODIES[path], **{f"zebra{i}": i for i in range(100)}}
    assert "more than 64 fields" in error_of(routes.post(path, body))


def test_responses_bring_log_probabilities_of_the_text(make_api):
    """`include: ["message.output_text.logprobs"]`, which answered an empty list."""
    api = make_api(route=("responses",), output_parser="think+hermes")
    api.engine.answer = "<think>Hm.</think>So."
    body = {
        "input": "hi",
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 50,
    }
    response = api.post("/v1/responses", body)
    assert names(response) == []
    (content,) = response.json()["output"][-1]["content"]
    assert content["text"] == "So."
    assert [entry["token"] for entry in content["logprobs"]] == ["S", "o", "."]
    assert {len(entry["top_logprobs"]) for entry in content["logprobs"]} == {2}
    streamed = api.post("/v1/responses", {**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == ["S", "o", "."]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert [entry["token"] for entry in done["logprobs"]] == ["S", "o", "."]
