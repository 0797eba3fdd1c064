"""Requests of the routes; the server itself is in the integration tests."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import EngineGenerateError, RequestError
from tenonry.outputs import PoolingOutput
from tenonry.sampling_params import PoolingParams
from tenonry_routes.pooling.pool import AT_ONCE, Pool
from tenonry_routes.pooling.requests import Embeddings, Rerank, parsed, prompts
from tenonry_worker_torch.pooling.calls import Pooling


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [{"prompt_token_ids": [1, 2]}]),
        ([[1], [2, 3]], [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2, 3]}]),
        (["a", [2]], ["a", {"prompt_token_ids": [2]}]),
    ],
)
def test_inputs_are_prompts(given, made):
    assert prompts(given) == made


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "^input: it must be a text"),
        ([], "^input: it is empty"),
        (["a", 1.5], "^input.1: it must be a text or a list of token ids"),
        ([True], "^input.0: "),
        (["a"] * 2049, "^input: 2049 are more than 2048"),
    ],
)
def test_other_inputs_are_named(given, words):
    with pytest.raises(RequestError, match=words):
        prompts(given)


@given(st.recursive(st.text(max_size=3) | st.integers() | st.none(), st.lists, max_leaves=6))
def test_any_list_is_prompts_or_refused(value):
    with contextlib.suppress(RequestError):
        assert len(prompts([value])) == 1


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        (Embeddings, {"input": "a", "dimensions": "8"}, "dimensions"),
        (Embeddings, {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        (Rerank, {"query": "a", "documents": [{"txt": "b"}]}, "documents[0]"),
        (Embeddings, {"input": "a", "dimensions": 8.5}, "dimensions"),
        (Embeddings, {"input": None}, "input"),
        (Rerank, {"documents": ["b"]}, "query"),
        (Rerank, [], None),
    ],
)
def test_wrong_fields_are_named(kind, body, field):
    with pytest.raises(RequestError) as error:
        parsed(kind, body)
    assert error.value.param == field


def test_integer_in_another_spelling():
    assert parsed(Embeddings, {"input": "a", "dimensions": 8.0}).dimensions == 8


class Engine:
    """Answers with the length of a prompt; "fail" fails."""

    info = SimpleNamespace(tasks={"embed": 1})

    def __init__(self):
        self.calls = {"pooling": Pooling(None)}
        self.running = 0
        self.most = 0
        self.ended = 0

    async def encode(self, prompt, params, request_id, *, priority):
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            if prompt == "fail":
                raise EngineGenerateError("it failed")
            return PoolingOutput(request_id, [0] * len(prompt), np.float32([len(prompt), 1]))
        finally:
            self.running -= 1
            self.ended += 1


def test_answers_keep_the_order_and_leave_room_in_the_queue():
    engine = Engine()
    pool = Pool(engine, "id", {"priority": 0})
    texts = ["a" * (1 + place % 9) for place in range(3 * AT_ONCE)]
    found = asyncio.run(pool.encode(texts, PoolingParams()))
    assert [each.data[0] for each in found] == [len(text) for text in texts]
    assert engine.most == AT_ONCE
    assert pool.num_tokens == sum(map(len, texts))
    assert len({each.request_id for each in found}) == len(texts)


def test_the_first_failure_is_raised_bare_and_ends_the_others():
    engine = Engine()
    with pytest.raises(EngineGenerateError, match="it failed"):
        asyncio.run(
            Pool(engine, "id", {"priority": 0}).encode(["a", "fail", *["b"] * 500], PoolingParams())
        )
    assert engine.running == 0
    assert engine.ended < 502


def test_scores_of_vectors_embed_each_text_once():
    engine = Engine()
    pairs = [("aa", "b"), ("aa", "aa"), ("aa", "b")]
    scores = asyncio.run(Pool(engine, "id", {"priority": 0}).scores(pairs))
    assert engine.ended == 2
    assert scores[1] == pytest.approx(1.0)
    assert scores[0] == scores[2] == pytest.approx(3 / (5**0.5 * 2**0.5))
