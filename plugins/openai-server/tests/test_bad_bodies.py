"""Whatever a body holds, the answer is 2xx or a 4xx in OpenAI's shape: never a 500, never a hang."""

from __future__ import annotations

import json
import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from tenonry_openai_server.protocol import parse

FIELDS = [
    "model", "prompt", "messages", "n", "best_of", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens",
    "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words",
    "allowed_token_ids", "logprobs", "top_logprobs", "prompt_logprobs", "extra_args", "stream", "stream_options",
    "priority", "cache_salt", "add_special_tokens", "truncate_prompt_tokens", "return_token_ids", "echo", "suffix",
    "kv_transfer_params", "tools", "tool_choice", "response_format", "chat_template_kwargs", "continue_final_message",
    "add_generation_prompt", "tokens", "return_token_strs",
]  # fmt: skip
PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
numbers = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from(
        [
            0,
            -1,
            1,
            2,
            128,
            129,
            2**31,
            2**31 - 1,
            2**63,
            -(2**63) - 1,
            10**30,
            1e308,
            -0.0,
            1.0,
            math.inf,
        ]
    ),
)
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        numbers,
        st.text(max_size=20),
        st.sampled_from(["", "\0", "a", "5", "none"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "x"]), inner, max_size=4
        ),
    ),
    max_leaves=8,
)
valid = st.sampled_from([
    {"prompt": "ab"}, {"prompt": [5, 6]}, {"messages": [{"role": "user", "content": "x"}]}, {"tokens": [104]}, {},
])  # fmt: skip


def is_openais(response: Any) -> bool:
    error = response.json()["error"]
    return (
        set(error) == {"message", "type", "param", "code"}
        and bool(error["message"])
        and " at 0x" not in response.text
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.sampled_from(PATHS), valid, st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
@pytest.mark.slow
def test_any_fields(api, path, base, fields):
    body = {**base, **fields}
    if body.get("stream") is True:
        body["stream"] = False
    text = json.dumps(body, allow_nan=True)
    response = api.request("POST", path, content=text, headers={"content-type": "application/json"})
    assert response.status_code in {200, 400, 404}, response.text
    assert response.status_code == 200 or is_openais(response)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(PATHS),
    st.one_of(st.binary(max_size=60), values.map(lambda v: json.dumps(v).encode())),
)
@pytest.mark.slow
def test_any_bytes(api, path, body):
    response = api.request("POST", path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    assert is_openais(response)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON: it is empty"),
        (b" \n", "not valid JSON: it is empty"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "a"} x', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "\\ud800 is half of a surrogate pair"),
        (b'{"prompt": "\\uDE00 a"}', "\\uDE00 is half of a surrogate pair"),
        (b'{"prompt": "\\ud83d\\ude00\\\\\\ud83d"}', "\\ud83d is half of a surrogate pair"),
        (b'{"prompt": "\\\\ud83d', "not valid JSON: Input data was truncated"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b"[" * 100_000, "must be a JSON object"),
        (b'{"seed": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a", "seed": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "not valid JSON"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", ""),
        (b'{"prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"prompt": "a", "top_p": Infinity}', "not valid JSON"),
        (b'{"prompt": "a", "logit_bias": {"5": 1e999}}', "logit_bias"),
        (b'{"prompt": "a", "temperature": 1e309}', "temperature"),
        (b"[]", "the body"),
        (b"null", "the body"),
        (b'"prompt"', "the body"),
        (b"{}", "prompt: is missing"),
        (b'{"prompt": []}', "prompt: must be a text"),
        (b'{"prompt": [[]]}', "prompt: must be a text"),
        (b'{"prompt": ["a", 5]}', "prompt: must be a text"),
        (b'{"prompt": [true]}', "prompt: must be a text"),
        (b'{"prompt": [-1]}', "prompt: must be a text"),
        (b'{"prompt": [4294967296]}', "token ids (0 to 2147483647)"),
        (b'{"prompt": "a", "n": 0}', "n: input should be greater than or equal to 1, not 0"),
        (b'{"prompt": "a", "n": 1000000}', "128"),
        (b'{"prompt": "a", "n": 2.5}', "n: input should be a valid integer, not 2.5"),
        (b'{"prompt": "a", "n": "2"}', "n: input should be a valid integer, not '2'"),
        (b'{"prompt": "a", "n": true}', "n: input should be a valid integer, not True"),
        (b'{"prompt": "a", "logprobs": 1000000}', "logprobs"),
        (b'{"prompt": "a", "temperature": -0.1}', "temperature"),
        (b'{"prompt": "a", "max_tokens": 0}', "max_tokens=0"),
        (b'{"prompt": "a", "max_tokens": -5}', "max_tokens"),
        (b'{"prompt": "a", "min_tokens": 99, "max_tokens": 5}', "min_tokens=99"),
        (b'{"prompt": "a", "best_of": 4}', "best_of=4 differs from n=1"),
        (b'{"prompt": "a", "suffix": "b"}', "suffix"),
        (b'{"prompt": "a", "stream_options": {}}', "stream_options needs stream"),
        (b'{"prompt": "a", "stream": true, "stream_options": {"include_usag": true}}',
         "stream_options.include_usag: this request has no such field; did you mean include_usage?"),
        (b'{"prompt": "a", "stream": true, "stream_options": 5}', "stream_options: must be an object"),
        (b'{"prompt": "a", "logit_bias": {"x": 1}}', "logit_bias names 'x'"),
        (b'{"prompt": "a", "logit_bias": {"5": 1000}}', "-100..100"),
        (b'{"prompt": "a", "stop": ["a", 5]}', "stop: must be a text or a list"),
        (b'{"prompt": "a", "stop": [""]}', "stop: must be a text or a list"),
        (b'{"prompt": "a", "allowed_token_ids": []}', "allowed_token_ids is empty"),
    ],
)  # fmt: skip
def test_bad_completion_names_the_field(body, message, api):
    response = api.request(
        "POST", "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert is_openais(response)
    assert message in response.json()["error"]["message"]
    assert not api.engine.received or not api.engine.running


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages"),
        ([], "messages: list should have at least 1 item, not 0"),
        ("hi", "messages"),
        ([{}], "messages.0.role: is missing"),
        ([{"role": "user"}], "messages.0: content is missing"),
        ([{"role": "", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": 5}], "messages.0.content: must be a text"),
        ([{"role": "user", "content": []}], "messages.0.content"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "a list of parts",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "without image_url"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a part without text"),
        ([{"role": "user", "content": [5]}], "messages.0.content"),
        (
            [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}] * 129}],
            "at most 128",
        ),
    ],
)
def test_bad_chat_names_the_message(messages, message, api):
    response = api.post("/v1/chat/completions", {"messages": messages})
    assert response.status_code == 400
    assert is_openais(response)
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["x"] * 100_000),
        ("stop", "x" * 100_000),
        ("logit_bias", {str(i): "x" for i in range(100_000)}),
        ("bad_words", ["x"] * 100_000),
        ("stop_token_ids", ["x"] * 100_000),
        ("allowed_token_ids", ["x"] * 100_000),
        ("prompt", ["x"] * 100_000),
        ("prompt", [[1]] * 100_000),
        ("prompt", [1] * 100_000 + ["x"]),
        ("extra_args", {str(i): 1 for i in range(100_000)}),
        ("extra_args", {"a": {"b": 1}}),
        ("cache_salt", "x" * 100_000),
        ("n", 128),
    ],
)
def test_huge_field_is_refused_in_few_words(field, value, api):
    """Reliability, fault 23: absurd sizes of n, stop and logit_bias are rejected before they are processed."""
    body = {"prompt": ["a"] * 100 if field == "n" else "a", field: value}
    response = api.post("/v1/completions", body)
    assert response.status_code == 400
    assert is_openais(response)
    assert len(response.text) < 3000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a"] * 32, "n": 128, "allowed_token_ids": [5] * 10_000}),
        ("/v1/completions", {"prompt": ["a"] * 1024, "bad_words": ["x" * 100] * 256}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "n": 128, "stop": ["x" * 1000] * 64},
        ),
    ],
)
def test_large_settings_are_not_multiplied(path, body, api):
    """Reliability, fault 23: every completion takes a copy of the settings to an engine, where others wait."""
    response = api.post(path, body)
    assert response.status_code == 400
    assert is_openais(response)
    assert "completions with" in response.json()["error"]["message"]
    assert not api.engine.received


def test_large_settings_of_one_completion_are_taken(api):
    assert api.complete(allowed_token_ids=list(range(200_000)), bad_words=["x" * 100] * 256)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}] * 100},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 100},
    ],
)
def test_messages_do_not_multiply_their_parts(message, api):
    """Reliability, fault 20: 16 MB of parts of a few bytes each occupied the event loop for seconds."""
    response = api.post("/v1/chat/completions", {"messages": [message] * 41})
    assert response.status_code == 400
    assert is_openais(response)
    assert "more than 4096 parts" in response.json()["error"]["message"]
    assert (
        api.post(
            "/v1/chat/completions", {"messages": [message] * 40, "add_special_tokens": True}
        ).status_code
        != 500
    )


def test_too_many_unknown_fields_of_a_large_body_end_its_reading(api, monkeypatch):
    """Reliability, fault 20: a million fields with names of their own occupied the event loop for a second."""
    decoded = []
    decode = parse._decode
    monkeypatch.setattr(parse, "_decode", lambda *args: decoded.append(args) or decode(*args))
    body = {"prompt": "a", **{f"x{i}": i for i in range(100_000)}}
    error = api.post("/v1/completions", body).json()["error"]
    assert error["code"] == "unknown_parameter"
    assert not decoded


def test_large_body_names_what_is_wrong_with_its_known_fields(api):
    body = {"prompt": "a", "metadata": {f"x{i}": i for i in range(100_000)}}
    assert api.post("/v1/completions", body).status_code == 200
    unsupported = api.post("/v1/completions", {**body, "suffix": "b"})
    assert unsupported.json()["error"]["code"] == "unsupported"
    assert api.post("/v1/completions", {**body, "n": 0}).json()["error"]["param"] == "n"
    del body["prompt"]
    assert "prompt: is missing" in api.post("/v1/completions", body).text


@pytest.mark.parametrize(("ids", "bad"), [([104, 2**20], 1), ([2**31 - 1, 2**20], 0)])
def test_detokenize_names_the_first_id_beyond_the_vocabulary(ids, bad, api):
    response = api.post("/detokenize", {"tokens": ids})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == f"tokens.{bad}"
    assert f"token id {ids[bad]} " in error["message"]
    assert f"0 to {2**20 - 1}" in error["message"]
    assert api.post("/detokenize", {"tokens": [2**20 - 1]}).status_code == 200


def test_many_bad_token_ids_are_one_error(api):
    response = api.post("/detokenize", {"tokens": ["x"] * 1_000_000})
    assert response.status_code == 400
    assert len(response.text) < 1000


@pytest.mark.parametrize("size", [16 << 20, 50 << 20])
def test_large_body_is_refused_before_it_is_parsed(size, api):
    response = api.request(
        "POST",
        "/v1/completions",
        content=b"x" * (size + 1),
        headers={"content-type": "application/json"},
    )
    assert response.status_code == 413
    assert is_openais(response)
    assert "16777216 bytes" in response.text


def test_large_chunked_body_is_refused_while_it_comes(make_api):
    api = make_api(max_body_bytes=10_000)
    taken = []

    async def parts():
        for _ in range(1000):
            taken.append(1)
            yield b"x" * 1000

    response = api.request(
        "POST", "/tokenize", content=parts(), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    assert len(taken) < 20


@pytest.mark.parametrize("length", ["-1", "x", "1e9", "9" * 30])
def test_odd_content_length_is_refused(length, api):
    headers = {"content-type": "application/json", "content-length": length}
    assert api.request("POST", "/tokenize", content=b"{}", headers=headers).status_code == 413


def test_prompt_too_long_or_empty_names_the_limit(api):
    long = api.post("/v1/completions", {"prompt": "x" * 200})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "too_long")
    assert "max_model_len=100" in long.text
    ids = api.post("/v1/completions", {"prompt": [[5], [5] * 101]})
    assert (ids.status_code, ids.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "has 101 tokens" in ids.text
    assert "max_model_len=100" in ids.text
    assert len(api.engine.received) == 1  # that of the text
    empty = api.post("/v1/completions", {"prompt": "", "add_special_tokens": False})
    assert (empty.status_code, empty.json()["error"]["param"]) == (400, "prompt")
    for body in (
        {"prompt": "x" * 200, "stream": True},
        {"prompt": "", "add_special_tokens": False, "stream": True},
    ):
        assert api.post("/v1/completions", body).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "max_tokens": 2.0, "temperature": 0.0, "seed": 3.0, "n": 1.0}',
        b'{"prompt": "a", "max_tokens": 2e0}',
        b'\xef\xbb\xbf{"prompt": "a"}',
    ],
)
def test_same_number_or_text_in_another_spelling(body, api):
    """JSON has one kind of number, and some clients put a byte order mark first."""
    response = api.request(
        "POST", "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("value", ["2.5", "true", '"2"', "1e400", "-0.5"])
def test_other_numbers_are_refused_as_they_were_sent(value, api):
    body = f'{{"prompt": "a", "max_tokens": {value}}}'.encode()
    response = api.request(
        "POST", "/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"
