"""Vectors, scores and classes over HTTP, compared with transformers on the same weights in float32 (AF-10)."""

from __future__ import annotations

import importlib.util
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from server_process import ForkedServer, Server

pytestmark = pytest.mark.timeout(120)
TEXTS = ["the cat sleeps on the mat", "who runs ?", "a red house", "the blue dog runs"]
TOLERANCE = 1e-5


def tiny_models():
    """The folders that the worker's own tests make."""
    root = (
        Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests" / "pooling" / "conftest.py"
    )
    spec = importlib.util.spec_from_file_location("tiny_pooling_models", root)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve_model(kind: str, root: Path) -> Iterator[tuple[Path, Server]]:
    """(folder, server) of a tiny model on two engines."""
    folder = root / kind
    tiny_models().save(kind, folder)
    arguments = ["--load-format", "auto", "--dtype", "float32", "--data-parallel-size", "2"]
    server = ForkedServer(folder, *arguments, OMP_NUM_THREADS="1")
    try:
        yield folder, server.ready()
        server.process.terminate()
        assert server.end() == 0, server.output
    finally:
        server.close()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    yield from serve_model("bert", tmp_path_factory.mktemp("pooling"))


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Server]]:
    yield from serve_model("bert_head", tmp_path_factory.mktemp("pooling"))


def post(server: Server, path: str, **body: object) -> tuple[int, dict]:
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def reference(folder: Path, kind: str, *texts: object) -> np.ndarray:
    """Result of transformers: mean over tokens, of length one; or the logits of a head."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = tokenizer(*texts, padding=True, return_tensors="pt", return_token_type_ids=True)
    with torch.no_grad():
        if kind == "bert":
            hidden = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32)(
                **given
            ).last_hidden_state
            mask = given["attention_mask"].unsqueeze(-1)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1).numpy()
        head = transformers.AutoModelForSequenceClassification
        return head.from_pretrained(folder, dtype=torch.float32)(**given).logits.numpy()


def test_embeddings_with_the_official_client(encoder):
    folder, server = encoder
    wanted = reference(folder, "bert", TEXTS)
    with server.client() as client:
        as_text = client.embeddings.create(model="tiny", input=TEXTS)
        as_numbers = client.embeddings.create(model="tiny", input=TEXTS[1], encoding_format="float")
        short = client.embeddings.create(model="tiny", input=TEXTS, dimensions=8)
    assert np.abs(np.array([each.embedding for each in as_text.data]) - wanted).max() < TOLERANCE
    assert np.abs(np.array(as_numbers.data[0].embedding) - wanted[1]).max() < TOLERANCE
    assert [each.index for each in as_text.data] == [0, 1, 2, 3]
    ids = post(server, "/tokenize", prompt=TEXTS[1])[1]["tokens"]
    assert as_numbers.usage.prompt_tokens == as_numbers.usage.total_tokens == len(ids)
    cut = wanted[:, :8] / np.linalg.norm(wanted[:, :8], axis=1, keepdims=True)
    assert np.abs(np.array([each.embedding for each in short.data]) - cut).max() < TOLERANCE
    status, by_ids = post(server, "/v1/embeddings", input=[ids, ids])
    assert status == 200
    assert np.abs(np.array(by_ids["data"][1]["embedding"]) - wanted[1]).max() < TOLERANCE


def vectors(answer) -> list[list[float]]:
    return [each["embedding"] for each in answer["data"]]


def distance(some, others) -> float:
    """Largest difference between numbers of two arrays; requests in other batches are summed in another order."""
    return np.abs(np.array(some) - np.array(others)).max()


def test_many_inputs_come_back_in_order_from_two_engines(encoder):
    folder, server = encoder
    texts = [" ".join(["cat", "dog", "red"][place % 3 :] * (1 + place % 7)) for place in range(300)]
    wanted = reference(folder, "bert", texts)
    status, answer = post(server, "/v1/embeddings", input=texts)
    assert status == 200
    assert distance(vectors(answer), wanted) < TOLERANCE


def test_long_inputs_are_cut_where_that_is_asked(encoder):
    import transformers

    folder, server = encoder
    long = "the red dog sleeps " * 30
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(long, truncation=True, max_length=10)["input_ids"]
    wanted = post(server, "/v1/embeddings", input=[ids, tokenizer(TEXTS[0])["input_ids"]])[1]
    status, answer = post(
        server, "/v1/embeddings", input=[long, TEXTS[0]], truncate_prompt_tokens=10
    )
    assert (status, answer["usage"]) == (200, wanted["usage"])
    assert distance(vectors(answer), vectors(wanted)) < TOLERANCE
    ranked = post(server, "/rerank", query="a", documents=[long], truncate_prompt_tokens=-1)
    assert ranked[0] == 200


@pytest.mark.parametrize("task", [{}, {"task": "embed"}])
def test_pooling_gives_the_vectors(encoder, task):
    _, server = encoder
    wanted = post(server, "/v1/embeddings", input=TEXTS)[1]
    status, answer = post(server, "/pooling", input=TEXTS, **task)
    assert status == 200
    assert answer["usage"] == wanted["usage"]
    assert [(each["object"], each["index"]) for each in answer["data"]] == [
        ("pooling", each["index"]) for each in wanted["data"]
    ]
    assert distance([each["data"] for each in answer["data"]], vectors(wanted)) < TOLERANCE
    status, answer = post(server, "/pooling", input=TEXTS, task="token_embed")
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")
    assert "this model serves embed" in answer["error"]["message"]


def test_vectors_rerank_by_their_cosine(encoder):
    folder, server = encoder
    query, *others = reference(folder, "bert", TEXTS)
    cosines = [float(query @ other) for other in others]
    status, answer = post(
        server, "/rerank", query=TEXTS[0], documents=[*TEXTS[1:3], {"text": TEXTS[3]}], top_n=2
    )
    assert status == 200
    order = sorted(range(3), key=lambda index: -cosines[index])[:2]
    assert [each["index"] for each in answer["results"]] == order
    assert [each["document"]["text"] for each in answer["results"]] == [
        TEXTS[1 + index] for index in order
    ]
    for each in answer["results"]:
        assert abs(each["relevance_score"] - cosines[each["index"]]) < TOLERANCE
    again = post(server, "/v2/rerank", query=TEXTS[0], documents=TEXTS[1:], top_n=2)
    for one, other in zip(again[1]["results"], answer["results"], strict=True):
        assert (one["index"], one["document"]) == (other["index"], other["document"])
        assert abs(one["relevance_score"] - other["relevance_score"]) < TOLERANCE  # batches differ


def test_a_cross_encoder_scores_pairs(cross_encoder):
    folder, server = cross_encoder
    logits = reference(folder, "bert_head", [TEXTS[0]] * 3, TEXTS[1:])[:, 0]
    wanted = 1 / (1 + np.exp(-logits))
    long = "the red dog sleeps " * 30
    status, answer = post(server, "/v1/score", text_1=long, text_2=long, truncate_prompt_tokens=9)
    first, second = " ".join(long.split()[:3]), " ".join(long.split()[:3])
    alone = post(server, "/v1/score", text_1=first, text_2=second)[1]
    assert (status, answer["data"], answer["usage"]) == (200, alone["data"], alone["usage"])
    status, answer = post(server, "/rerank", query=long, documents=["b"], truncate_prompt_tokens=4)
    assert (status, "give at least 5" in answer["error"]["message"]) == (400, True)
    status, answer = post(server, "/v1/score", text_1=TEXTS[0], text_2=TEXTS[1:])
    assert status == 200
    assert np.abs(np.array([each["score"] for each in answer["data"]]) - wanted).max() < TOLERANCE
    status, answer = post(
        server, "/v1/rerank", query=TEXTS[0], documents=TEXTS[1:], return_documents=False
    )
    assert [each["index"] for each in answer["results"]] == np.argsort(
        -wanted, kind="stable"
    ).tolist()
    assert "document" not in answer["results"][0]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("embeddings", {}, "input: is missing"),
        ("embeddings", {"input": []}, "input: it is empty"),
        ("embeddings", {"input": ["a", ""]}, "input.1: it must be a text or a list of token ids"),
        ("embeddings", {"input": ["a"] * 2049}, "input: 2049 are more than 2048"),
        ("embeddings", {"input": [10**6]}, "holds token id 1000000"),
        ("embeddings", {"input": "a " * 90}, "max_model_len=64"),
        ("embeddings", {"input": "a", "dimensions": 33}, "1 to 32 numbers"),
        ("embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"input": "a", "inptu": 1}, "inptu"),
        ("embeddings", {"input": "a", "model": "other"}, "'other' is not served here"),
        ("embeddings", {"input": "a", "truncate_prompt_tokens": 65}, "1 to 64, or -1"),
        ("embeddings", {"input": "a", "truncate_prompt_tokens": "all"}, "truncate_prompt_tokens"),
        ("rerank", {"query": "a", "documents": []}, "documents: it is empty"),
        ("rerank", {"query": "a", "documents": ["b"], "top_n": 0}, "top_n=0: it must be at least 1"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1 has 2 texts and text_2 has 3"),
        ("classify", {"input": "a"}, "this model serves embed"),
        ("completions", {"prompt": "a"}, "POST /v1/embeddings"),
    ],
)  # fmt: skip
def test_bad_requests_are_named(encoder, path, body, words):
    _, server = encoder
    status, answer = post(server, f"/v1/{path}", **body)
    assert status == (404 if "other" in body.values() else 400), answer
    assert words in answer["error"]["message"]


def test_a_model_that_generates_says_so(text_model):
    server = ForkedServer(text_model, "--worker", "null")
    try:
        server.ready()
        status, answer = post(server, "/v1/embeddings", input="a")
        assert status == 400
        assert "this model generates" in answer["error"]["message"]
    finally:
        server.close()
