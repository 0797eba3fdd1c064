"""Token ids and counts at and beyond their bounds, through every door (class Q): −1, V, 2^31, 2^32, 2^63.

A wrong one is a 400 that names its field, or an exception that does; it never reaches the engine, and the server lives.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenonry import LLM, SamplingParams
from tenonry.errors import RequestError

VOCABULARY = 2048
WRONG_IDS = (
    -1,
    VOCABULARY,
    2**31 - 1,
    2**31,
    2**32,
    2**32 + 1,
    2**63,
    2**64,
    1e308,
    0.5,
    True,
    "1",
    None,
)
COUNTS = (-2, -(2**31), 2**31, 2**32, 2**63, 2**64, 0.5, 1e308, "1", [1])


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "a", "max_tokens": 2, **fields}


ID_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "prompt": lambda one: body(prompt=[1, one]),
    "stop_token_ids": lambda one: body(stop_token_ids=[one]),
    "allowed_token_ids": lambda one: body(allowed_token_ids=[1, one]),
    "logit_bias": lambda one: body(logit_bias={str(one): 1}),
}
COUNT_FIELDS = (
    "max_tokens", "min_tokens", "n", "logprobs", "prompt_logprobs", "top_k", "seed", "priority",
    "truncate_prompt_tokens",
)  # fmt: skip
PATHS = ("/v1/completions", "/v1/chat/completions")


def post(door, path: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    sent = dict(fields)
    if path.endswith("chat/completions"):
        sent.pop("prompt", None)
        sent["messages"] = [{"role": "user", "content": "a"}]
    raw = json.dumps(sent).encode()
    status, _, answer = door.send("POST", path, raw, {"content-type": "application/json"})
    return status, json.loads(answer)


@pytest.mark.parametrize("field", ID_FIELDS)
@pytest.mark.parametrize("value", WRONG_IDS, ids=repr)
def test_wrong_ids_are_refused_by_field(door, field, value):
    status, answer = post(door, "/v1/completions", ID_FIELDS[field](value))
    if field == "logit_bias" and value == "1":  # keys of JSON objects are strings
        assert status == 200
        return
    assert status == 400, answer
    assert field in json.dumps(answer["error"])


@pytest.mark.parametrize(("path", "field"), list(itertools.product(PATHS, COUNT_FIELDS)))
def test_counts_are_bounded(door, path, field):
    for value in COUNTS:
        status, answer = post(door, path, body(**{field: value}))
        if status == 200:
            assert field in {"seed", "priority", "top_k"} or value == "1", (field, value)
            continue
        assert status == 400, answer
        assert field in json.dumps(answer["error"]), (field, value, answer)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/responses", "/v1/messages"])
def test_other_doors(door, path):
    """Bodies with ids and counts at random places."""
    draw = random.Random(path)
    fields = {
        "/tokenize": ("prompt", "add_special_tokens"),
        "/detokenize": ("tokens",),
        "/v1/responses": ("input", "max_output_tokens", "top_logprobs", "temperature"),
        "/v1/messages": ("max_tokens", "top_k", "temperature", "messages"),
    }[path]
    values = [*WRONG_IDS, *COUNTS, [1, -1], [2**31], [[1]], [2**63], {}]
    base = {
        "/v1/messages": {"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]},
        "/v1/responses": {"max_output_tokens": 1, "input": "a"},
    }
    for _ in range(100):
        sent = {"model": "tiny", **base.get(path, {})}
        sent |= {draw.choice(fields): draw.choice(values)}
        raw = json.dumps(sent).encode()
        status, _, answer = door.send("POST", path, raw, {"content-type": "application/json"})
        assert status < 500, (sent, answer)


def test_the_server_still_answers(door):
    status, answer = post(door, "/v1/completions", body())
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 2


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    made = LLM(model="demo", worker="null", io_processor="none", max_model_len=64)
    yield made
    made.shutdown()


@pytest.mark.parametrize("value", [-1, VOCABULARY, 2**31, 2**32, 2**63])
def test_the_offline_door(llm, value):
    with pytest.raises(RequestError, match="prompt"):
        llm.generate([{"prompt_token_ids": [1, value]}], SamplingParams(max_tokens=1))
    (output,) = llm.generate([{"prompt_token_ids": [1]}], SamplingParams(max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1
