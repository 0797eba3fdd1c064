"""Unknown fields of a request: treated as absent, ignored and reported, or rejected."""

from __future__ import annotations

import json
import logging
import sys
import types
from typing import Any

import hypothesis.strategies as st
import pytest
from fastapi import APIRouter
from hypothesis import HealthCheck, given, settings
from openai_server_fakes import CharacterIO
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tenonry.sampling_params import StructuredOutput
from tenonry_openai_server.protocol.fields import ELSEWHERE, UNSUPPORTED, nearest_field
from tenonry_openai_server.protocol.requests import ChatRequest, CompletionRequest, TokenizeRequest

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "ab"},
    "/tokenize": {"prompt": "ab"},
    "/detokenize": {"tokens": [104]},
}
HEADER = "x-tenonry-ignored"
# Of llama.cpp, Ollama, SGLang, TGI, OpenRouter, DashScope, Mistral, DeepSeek and clients of several of them.
OTHER_SERVERS = {
    "enable_thinking": False, "thinking": {"type": "disabled"}, "think": False, "reasoning": {"effort": "low"},
    "thinking_budget": 5, "repeat_penalty": 1.1, "repeat_last_n": 64, "num_ctx": 4096, "num_predict": 5, "n_predict": 5,
    "cache_prompt": True, "session_id": "s", "id_slot": -1, "slot_id": 1, "n_keep": 1, "n_probs": 1, "tfs_z": 1.0,
    "typical_p": 0.9, "typ_p": 0.9, "top_a": 0.1, "top_n_sigma": 1.0, "mirostat": 2, "dry_multiplier": 0.8,
    "xtc_probability": 0.1, "dynatemp_range": 0.5, "samplers": ["top_k"], "keep_alive": "5m", "options": {"num_ctx": 5},
    "min_length": 5, "max_new_tokens": 5, "do_sample": True, "return_full_text": False, "decoder_input_details": True,
    "rid": "r", "separate_reasoning": True, "stop_regex": "a", "no_stop_trim": True, "custom_params": {"a": 1},
    "mode": "instruct", "models": ["a"], "provider": {"order": ["x"]}, "route": "fallback", "transforms": ["m"],
    "plugins": [{"id": "web"}], "usage": {"include": True}, "verbosity": "low", "top_n": 5, "speed": "fast",
    "safe_prompt": True, "random_seed": 5, "enable_search": True, "result_format": "message",
    "stream_interval": 5, "return_token_offsets": True, "extra_body": {"a": 1}, "chat_id": "c", "timeout": 5,
    "client_metadata": {"a": 1},
}  # fmt: skip


def post(api: Any, body: Any, path: str = "/v1/chat/completions") -> Any:
    return api.post(path, body)


def names(response: Any) -> list[str]:
    text = response.headers.get(HEADER, "")
    return text.split(", ") if text else []


@pytest.mark.nightly_after(60)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", OTHER_SERVERS)
@pytest.mark.slow
def test_fields_of_other_servers_are_ignored_and_named(name, path, api):
    response = post(api, {**PATHS[path], name: OTHER_SERVERS[name]}, path)
    assert response.status_code == 200, response.text
    assert names(response) == [name]
    assert api.engine.num_ignored_fields == 1


def test_answer_is_that_of_the_request_without_them(api):
    plain = api.chat(seed=5, temperature=0.5)
    full = api.chat(seed=5, temperature=0.5, **OTHER_SERVERS)
    assert plain["choices"] == full["choices"]
    first, second = api.engine.received
    assert (first.prompt, first.params) == (second.prompt, second.params)


def test_streams_name_them_too(api):
    response = post(api, {**CHAT, "stream": True, "num_ctx": 5})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert names(response) == ["num_ctx"]


def test_errors_name_them_too(api):
    response = post(api, {**CHAT, "num_ctx": 5, "model": "no"})
    assert (response.status_code, names(response)) == (404, ["num_ctx"])


def test_request_without_them_has_no_header(api):
    assert (
        HEADER
        not in post(api, {**CHAT, "user": "u", "store": False, "metadata": {"a": "b"}}).headers
    )


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"stream": True, "stream_options": {"zebra": 1}}, "stream_options.zebra"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"response_format": {"type": "text", "zebra": 1}}, "response_format.zebra"),
        ({"messages": [{"role": "user", "content": "x", "zebra": {"a": 1}}] * 3},
         "messages[].zebra"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "zebra": 1}]}]},
         "messages[].content[].zebra"),
    ],
)  # fmt: skip
def test_objects_in_a_body_are_no_exception(fields, found, api):
    response = post(api, {**CHAT, **fields})
    assert response.status_code == 200, response.text
    assert found in names(response)


@pytest.mark.parametrize(
    "fields",
    [
        {"zebra": None},
        {"max_token": None},
        {"use_beam_search": None},
        {"use_beam_search": False},
        {"suffix": ""},
        {"stream": True, "stream_options": {"include_obfuscation": False, "include_usag": None}},
        {"length_penalty": 1.0, "early_stopping": False, "spaces_between_special_tokens": True},
        {"truncation_side": "left"},
        {"tool_choice": "auto"},
        {"messages": [{"role": "user", "content": "x", "zebra": None}]},
    ],
)
def test_fields_that_ask_for_nothing_are_as_good_as_absent(fields, api):
    response = post(api, {**CHAT, **fields})
    assert response.status_code == 200, response.text
    assert names(response) == []


@pytest.mark.parametrize(
    ("path", "fields", "param", "nearest"),
    [
        ("/v1/chat/completions", {"max_token": 5}, "max_token", "max_tokens"),
        ("/v1/chat/completions", {"tempreature": 0}, "tempreature", "temperature"),
        ("/v1/chat/completions", {"maxTokens": 5}, "maxTokens", "max_tokens"),
        ("/v1/chat/completions", {"top-p": 0.5}, "top-p", "top_p"),
        ("/v1/chat/completions", {"stops": "a"}, "stops", "stop"),
        ("/v1/chat/completions", {"N": 2}, "N", "n"),
        ("/v1/completions", {"logprob": 1}, "logprob", "logprobs"),
        ("/tokenize", {"add_special_token": True}, "add_special_token", "add_special_tokens"),
        ("/v1/chat/completions", {"stream": True, "stream_options": {"include_usag": True}},
         "stream_options.include_usag", "include_usage"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "contant": "x"}]}, "messages.0.contant", "content"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x"}]}]},
         "messages.0.content.0.txt", "text"),
    ],
)  # fmt: skip
def test_misspelt_fields_are_refused_with_the_right_one(path, fields, param, nearest, api):
    response = post(api, {**PATHS[path], **fields}, path)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert f"did you mean {nearest}?" in error["message"]
    assert not api.engine.received


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, TokenizeRequest])
def test_no_field_of_another_server_looks_misspelt(model):
    looks = {name: nearest_field(name, model.model_fields) for name in OTHER_SERVERS}
    assert {name for name, nearest in looks.items() if nearest} <= ELSEWHERE


def test_names_of_a_letter_or_two_are_near_to_nothing():
    for name in ("m", "nn", "id", "top", "user", "think"):
        assert nearest_field(name, ChatRequest.model_fields) in (None, "stop"), name


VALUES = {
    "truncation_side": "right",
    "modalities": ["audio"],
    "best_of": 2,
    "detokenize": False,
    "top_logprobs": 5,
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_fields_that_would_change_an_answer_are_refused(name, path, api):
    """Reliability, fault 23: nothing that changes an answer is ignored."""
    if name in (ChatRequest if "chat" in path else CompletionRequest).model_fields:
        return
    response = post(api, {**PATHS[path], name: VALUES.get(name, 5)}, path)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported")
    assert UNSUPPORTED[name] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"choice": ["a"], "structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}},
         "structured_outputs.disable_any_whitespace"),
        ({"response_format": {"type": "json_object", "schema": {"type": "object"}}}, "response_format.schema"),
    ],
)  # fmt: skip
def test_and_so_are_those_of_objects(fields, param, api):
    response = post(api, {**CHAT, **fields})
    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (
        param,
        "unsupported",
    )


def test_operator_refuses_them(make_api):
    api = make_api(unknown_fields="refuse")
    for fields, param in (
        ({"num_ctx": 5}, "num_ctx"),
        ({"messages": [{"role": "user", "content": "x", "zebra": 1}]}, "messages[].zebra"),
    ):
        response = post(api, {**CHAT, **fields})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, "unknown_parameter")
        assert HEADER not in response.headers
    assert post(api, {**CHAT, "user": "u", "num_ctx": None}).status_code == 200


def test_routes_of_operators_refuse_them(make_api):
    api = make_api(enable_operator_routes=True, api_key=("k",))
    for path in ("/sleep", "/pause", "/resume", "/scale", "/v1/load_lora_adapter"):
        body = {"num_ctx": 5}
        response = api.post(path, body, headers={"authorization": "Bearer k"})
        assert response.status_code == 400, path
        assert response.json()["error"]["code"] == "unknown_parameter"


def test_log_has_each_name_once(api, caplog):
    with caplog.at_level(logging.WARNING, "tenonry.server"):
        for _ in range(3):
            post(api, {**CHAT, "num_ctx": 5})
        message = {"role": "user", "content": "x", "zebra": 1}
        post(api, {"messages": [message] * 5})
    lines = [record.getMessage() for record in caplog.records]
    assert len([line for line in lines if "num_ctx" in line]) == 1
    assert len([line for line in lines if "messages[].zebra" in line]) == 1
    assert api.engine.num_ignored_fields == 4


def test_log_and_header_are_bounded(api, caplog):
    """Names come from clients: none of them may fill the memory, a header or the log."""
    with caplog.at_level(logging.WARNING, "tenonry.server"):
        for start in range(0, 600, 50):
            body = {**CHAT, **{f"zebra{i}_{'ü' * 500}": 1 for i in range(start, start + 50)}}
            response = post(api, body)
            assert response.status_code == 200
            assert len(response.headers[HEADER]) < 2200
            assert response.headers[HEADER].endswith(" more")
    assert 256 <= len(caplog.records) <= 258


def test_too_many_of_them_are_refused_before_all_are_read(api):
    body = {**CHAT, **{f"x{i}": i for i in range(100_000)}}
    error = post(api, body).json()["error"]
    assert error["code"] == "unknown_parameter"
    assert "more than" in error["message"]
    for count, most in ((100, 64), (100_000, 65_536)):
        message = {"role": "user", "content": "x", **{f"x{i}": i for i in range(count)}}
        assert f"more than {most} fields" in post(api, {"messages": [message]}).text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=80), st.sampled_from([1, "x", [1], {"a": 1}]))
def test_any_name_gives_a_header_that_can_be_sent(api, name, value):
    response = api.request(
        "POST",
        "/v1/completions",
        content=json.dumps({"prompt": "ab", name: value}),
        headers={"content-type": "application/json"},
    )
    assert response.status_code in {200, 400}
    text = response.headers.get(HEADER, "")
    assert text.isascii()
    assert text.isprintable()


def test_a_plugin_reports_what_it_leaves_out(make_api, monkeypatch):
    module = types.ModuleType("leaving_out")

    def build(context: Any) -> APIRouter:
        router = APIRouter()

        @router.post("/it")
        async def it(request: Request) -> Response:
            context.chats.ignore(request, "tools[2] (web_search)", "the server does not search")
            return PlainTextResponse("done")

        return router

    module.build = build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "leaving_out", module)
    api = make_api(route=("leaving_out:build",))
    assert names(api.post("/plugins/leaving_out/it", {})) == ["tools[2] (web_search)"]
    strict = make_api(route=("leaving_out:build",), unknown_fields="refuse")
    refused = strict.post("/plugins/leaving_out/it", {})
    assert refused.status_code == 400
    assert "the server does not search" in refused.json()["error"]["message"]


class RelaxingProcessor(CharacterIO):
    """Leaves `uniqueItems` out of every schema."""

    def relaxed_output(self, spec):
        return StructuredOutput(json='{"type": "array"}'), ("/uniqueItems",)


@pytest.mark.parametrize("keywords", ["strict", "lenient"])
@pytest.mark.parametrize("unknown_fields", ["ignore", "refuse"])
def test_keywords_that_are_not_enforced_are_named_where_they_are_left_out(
    make_api, keywords, unknown_fields
):
    """Whatever happens to unknown fields."""
    api = make_api(schema_keywords=keywords, unknown_fields=unknown_fields)
    api.engine.io_processor = RelaxingProcessor(api.engine.io_processor.context)
    schema = {"type": "array", "uniqueItems": True}
    response = post(api, {**CHAT, "structured_outputs": {"json": schema}})
    assert response.status_code == 200, response.text
    is_lenient = keywords == "lenient"
    assert names(response) == ["schema/uniqueItems"] * is_lenient
    wanted = api.engine.received[-1].params.structured_output.json
    assert (json.loads(wanted) == schema) is not is_lenient


def test_requests_without_a_schema_are_not_relaxed(make_api):
    api = make_api(schema_keywords="lenient")
    api.engine.io_processor = RelaxingProcessor(api.engine.io_processor.context)
    assert names(post(api, {**CHAT, "structured_outputs": {"regex": "a"}})) == []
    assert api.engine.received[-1].params.structured_output.regex == "a"


@pytest.mark.parametrize("detail", [None, "auto", "low", "high"])
def test_detail_of_an_image_is_honoured(detail, api):
    """By the IO processor; no value is ignored."""
    url = {"url": "data:image/png;base64,aGk=", "detail": detail}
    content = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": url}]
    response = post(api, {"messages": [{"role": "user", "content": content}]})
    assert response.status_code == 200, response.text
    assert names(response) == []
