"""POST /v1/completions over the fake engine: shapes, parameters, streams."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import msgspec
import pytest
from openai_server_fakes import ANSWER

from tenonry.errors import (
    DrainingError,
    EngineDeadError,
    EngineGenerateError,
    ErrorCode,
    QueueFullError,
)
from tenonry.outputs import Logprob
from tenonry.sampling_params import OutputKind
from tenonry_openai_server import helper_thread
from tenonry_openai_server.protocol import views
from tenonry_openai_server.protocol.logprobs import completion_logprobs, prompt_logprobs
from tenonry_openai_server.protocol.tokens import TokenTexts


def joined(events: list[str], index: int = 0) -> str:
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def test_completion_has_openais_shape(api):
    answer = api.complete(max_tokens=5)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "fake"
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0, "text": ANSWER[:5], "logprobs": None, "finish_reason": "length", "stop_reason": None,
    }  # fmt: skip
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 2},
    }  # fmt: skip


def test_default_length_is_16_and_the_end_says_stop(api):
    assert len(api.complete()["choices"][0]["text"]) == 16
    api.engine.answer = "Short"
    assert api.complete()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([5, 6], [{"prompt_token_ids": [5, 6]}]),
        ([[5, 6], [7]], [{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [7]}]),
    ],
)
def test_prompt_takes_four_forms(prompt, expected, api):
    answer = api.complete(prompt=prompt, n=2)
    assert [call.prompt for call in api.engine.received] == expected
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * len(expected)))
    assert len({call.request_id for call in api.engine.received}) == len(expected)


def test_every_sampling_field_reaches_the_engine(api):
    fields = {
        "n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 11, "max_tokens": 9,
        "min_tokens": 3, "stop": ["x", "y"], "stop_token_ids": [3], "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False, "presence_penalty": 0.25, "frequency_penalty": -0.25, "repetition_penalty": 1.1,
        "logit_bias": {"5": -3.0}, "bad_words": ["no"], "allowed_token_ids": [1, 2], "logprobs": 2,
        "prompt_logprobs": 1, "extra_args": {"mine": "x"},
    }  # fmt: skip
    api.complete(**fields, priority=-4, cache_salt="s", add_special_tokens=False)
    (call,) = api.engine.received
    given = {name: getattr(call.params, name) for name in fields}
    assert given == {**fields, "logit_bias": {5: -3.0}}
    assert call.params.output_kind is OutputKind.FINAL
    assert call.fields["priority"] == -4
    assert call.fields["cache_salt"] == "s"
    assert call.fields["add_special_tokens"] is False


def test_length_has_the_name_of_chats_too(api):
    api.complete(max_tokens=9, max_completion_tokens=4)
    api.complete(max_completion_tokens=3, max_tokens=None)
    assert [call.params.max_tokens for call in api.engine.received] == [4, 3]


def test_models_defaults_stand_where_the_request_says_nothing(api):
    defaults = {"temperature": 0.6, "top_k": 20, "max_tokens": 3, "unknown": 1}
    api.engine.model = type(api.engine.model)(
        name="fake",
        path="",
        architecture="F",
        max_model_len=100,
        vocab_size=9,
        default_sampling=defaults,
    )
    api.complete(temperature=0.1, top_p=None)
    params = api.engine.received[0].params
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.1, 20, 1.0, 16)


def test_biases_of_the_model_and_of_the_request(api):
    """A model's suppressed tokens stay suppressed; the biases of a request take precedence."""
    api.engine.model = msgspec.structs.replace(
        api.engine.model, default_sampling={"logit_bias": {3: -100.0, 4: -100.0}}
    )
    api.complete()
    api.complete(logit_bias={"4": 2, "5": 1})
    biases = [call.params.logit_bias for call in api.engine.received]
    assert biases == [{3: -100.0, 4: -100.0}, {3: -100.0, 4: 2.0, 5: 1.0}]


def test_stream_ends_with_done_and_says_the_same(api):
    events = api.stream("/v1/completions", {"prompt": "ab", "max_tokens": 30})
    assert joined(events) == ANSWER
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert all(
        chunk["object"] == "text_completion" and chunk["model"] == "fake" for chunk in chunks
    )
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)
    assert api.engine.received[0].params.output_kind is OutputKind.DELTA


@pytest.mark.parametrize("reason", [None, 7, "llo"])
def test_what_stopped_an_answer_stands_beside_it(reason, api):
    api.engine.stop_reason = reason
    assert api.complete(max_tokens=30)["choices"][0]["stop_reason"] == reason
    assert api.chat(max_tokens=30)["choices"][0]["stop_reason"] == reason
    for path, body in (
        ("/v1/completions", {"prompt": "ab", "max_tokens": 30}),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30},
        ),
    ):
        assert json.loads(api.stream(path, body)[-2])["choices"][0]["stop_reason"] == reason


def test_stream_carries_usage_when_asked(api):
    body = {"prompt": "ab", "max_tokens": 4, "stream_options": {"include_usage": True}}
    *chunks, last = [json.loads(event) for event in api.stream("/v1/completions", body)[:-1]]
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 7
    body["stream_options"].update(continuous_usage_stats=True, include_obfuscation=False)
    chunks = [json.loads(event) for event in api.stream("/v1/completions", body)[:-1]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 4]


def test_stream_of_many_completions_keeps_them_apart(api):
    events = api.stream("/v1/completions", {"prompt": ["ab", "cd"], "n": 2, "max_tokens": 30})
    assert [joined(events, index) for index in range(4)] == [ANSWER] * 4


def test_token_ids_are_returned_when_asked(api):
    choice = api.complete(prompt=[7, 8], max_tokens=3, return_token_ids=True)["choices"][0]
    assert choice["token_ids"] == [ord(c) for c in ANSWER[:3]]
    assert choice["prompt_token_ids"] == [7, 8]
    events = api.stream(
        "/v1/completions", {"prompt": [7, 8], "max_tokens": 3, "return_token_ids": True}
    )
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert [i for choice in choices for i in choice["token_ids"]] == [ord(c) for c in ANSWER[:3]]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[7, 8], None, None]


def test_logprobs_have_the_shape_of_completions(api):
    choice = api.complete(max_tokens=2, logprobs=2)["choices"][0]
    assert choice["logprobs"] == {
        "text_offset": [0, 1],
        "tokens": ["H", "e"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"H": -0.5, "=": -1.0}, {"e": -0.5, "=": -1.0}],
    }
    events = api.stream("/v1/completions", {"prompt": "ab", "max_tokens": 2, "logprobs": 2})
    parts = [json.loads(event)["choices"][0]["logprobs"] for event in events[:-1]]
    for name, entries in choice["logprobs"].items():
        assert [entry for part in parts for entry in part[name]] == entries


def test_a_token_that_can_never_come_has_a_number(api):
    """JSON has no infinity."""
    never = {5: Logprob(-math.inf, 3, "x")}
    (value,) = completion_logprobs([5], [never], [0], TokenTexts(None)).token_logprobs
    assert value == -9999.0
    assert (
        json.loads(msgspec.json.encode(prompt_logprobs([never], TokenTexts(None))))[0]["5"][
            "logprob"
        ]
        == -9999.0
    )


def test_echo_puts_the_prompt_in_front(api):
    assert api.complete(echo=True, max_tokens=2)["choices"][0]["text"] == "abHe"
    assert (
        joined(api.stream("/v1/completions", {"prompt": "ab", "echo": True, "max_tokens": 2}))
        == "abHe"
    )
    assert api.complete(prompt=[97, 98], echo=True, max_tokens=2)["choices"][0]["text"] == "abHe"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_of_the_prompt_alone_scores_it(stream, api):
    """The request of evaluation harnesses: the log-probabilities of a text, and no new token."""
    body = {"prompt": "ab", "echo": True, "logprobs": 1, "max_tokens": 0, "return_token_ids": True}
    if stream:
        options = {"stream_options": {"include_usage": True}}
        first, last = [json.loads(e) for e in api.stream("/v1/completions", body | options)[:-1]]
        choice, usage = first["choices"][0], last["usage"]
    else:
        answer = api.complete(**body)
        choice, usage = answer["choices"][0], answer["usage"]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert choice["token_ids"] == []
    assert usage["completion_tokens"] == 0


def test_prompt_logprobs_are_keyed_by_token_id(api):
    choice = api.complete(max_tokens=1, prompt_logprobs=1)["choices"][0]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {
        "97": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}
    }


def test_truncate_keeps_the_last_tokens(api):
    api.complete(prompt="abcdef", truncate_prompt_tokens=2)
    api.complete(prompt=[1, 2, 3], truncate_prompt_tokens=2)
    assert [call.prompt for call in api.engine.received] == [
        {"prompt_token_ids": [101, 102]},
        {"prompt_token_ids": [2, 3]},
    ]
    api.complete(prompt=list(range(2, 202)), truncate_prompt_tokens=-1, max_tokens=30)
    assert api.engine.received[-1].prompt == {
        "prompt_token_ids": list(range(132, 202))
    }  # and 30 make 100
    response = api.post("/v1/completions", {"prompt": "a", "truncate_prompt_tokens": 1000})
    assert response.status_code == 400
    assert "at most 100" in response.json()["error"]["message"]


def test_without_tokenizer_only_ids_are_served(make_api):
    api = make_api(text=False)
    response = api.post("/v1/completions", {"prompt": "text"})
    assert response.status_code == 400
    assert "send token ids" in response.json()["error"]["message"]
    choice = api.complete(prompt=[5], max_tokens=2, return_token_ids=True)["choices"][0]
    assert (choice["text"], len(choice["token_ids"])) == ("", 2)
    assert api.engine.received[0].params.detokenize is False


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (QueueFullError("5000 requests run or wait", 2.2), 429, "queue_full", "3"),
        (
            DrainingError("the server is shutting down and accepts no new requests", 5.0),
            503,
            "draining",
            "5",
        ),
        (EngineDeadError("engine 0 (pid 12) died"), 503, "engine_dead", "5"),
        (EngineGenerateError("none is left", ErrorCode.NO_TOKEN_LEFT), 400, "no_token_left", None),
        (EngineGenerateError("engines died", ErrorCode.ENGINE_CRASH), 500, "engine_crash", None),
        (
            EngineGenerateError("there are none", ErrorCode.NO_PROMPT_LOGPROBS),
            400,
            "no_prompt_logprobs",
            None,
        ),
        (EngineGenerateError("kernel failed at 0x7fffdeadbeef"), 500, "generation_failed", None),
        (RuntimeError("secret at 0x7fffdeadbeef"), 500, "internal_error", None),
    ],
)
def test_failures_have_their_status_and_say_nothing_secret(error, status, code, retry, api):
    api.engine.before = error
    for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": ["a", "b"]}):
        response = api.post("/v1/completions", body)
        assert response.status_code == status
        assert response.json()["error"]["code"] == code
        kinds = {400: "invalid_request_error", 429: "rate_limit_error"}
        assert response.json()["error"]["type"] == kinds.get(status, "server_error")
        assert response.headers.get("retry-after") == retry
        assert not {"0x7", "secret", "pid"} & set(response.text.split())
        assert "0x7fff" not in response.text


def test_failure_in_a_stream_is_an_event_that_clients_raise(api):
    api.engine.after = EngineGenerateError("row 3 was NaN")
    *chunks, error, done = api.stream("/v1/completions", {"prompt": "ab"})
    assert len(chunks) == 2
    assert json.loads(error)["error"]["code"] == "generation_failed"
    assert "NaN" not in error
    assert done == "[DONE]"


def test_error_of_one_prompt_ends_the_whole_request(api):
    response = api.post("/v1/completions", {"prompt": ["ab", "x" * 200]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert not api.engine.running


def test_model_must_be_served(make_api):
    api = make_api(config={"served_model_name": ("one", "two")})
    assert api.complete(model="two")["model"] == "two"
    assert api.complete()["model"] == "one"
    response = api.post("/v1/completions", {"prompt": "a", "model": "gpt"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert "one, two" in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("inline", "is_elsewhere"), [(20_000, False), (100, True)])
def test_long_lists_of_logprobs_are_written_on_a_thread(
    api, monkeypatch, inline, is_elsewhere, stream
):
    """They take seconds, which would block all other requests."""
    writers = []

    def write(*args: Any, **keywords: Any) -> Any:
        writers.append(threading.current_thread().name.startswith("asyncio_"))
        return completion_logprobs(*args, **keywords)

    monkeypatch.setattr(helper_thread, "INLINE_CHARS", inline)
    monkeypatch.setattr(views, "completion_logprobs", write)
    body = {"prompt": "x" * 60, "max_tokens": 8, "logprobs": 2, "echo": True}
    if stream:
        found = [
            json.loads(event)["choices"][0] for event in api.stream("/v1/completions", body)[:-1]
        ]
    else:
        found = api.complete(**body)["choices"]
    assert sum(len(choice["logprobs"]["tokens"]) for choice in found) == 60 + 1 + 8
    assert writers[0] is is_elsewhere  # a stream's first chunk brings the prompt's
