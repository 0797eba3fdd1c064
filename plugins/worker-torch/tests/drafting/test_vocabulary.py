"""Vocabularies of two models, as their tokenizer files have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenonry.errors import ModelError
from tenonry_worker_torch.drafting.vocabulary import vocabulary_difference

WORDS = {"a": 0, "b": 1, "c": 2}


def folder(path: Path, vocab, added=()) -> Path:
    path.mkdir()
    tokens = [{"id": token_id, "content": token} for token_id, token in added]
    raw = {"model": {"vocab": vocab}, "added_tokens": tokens}
    (path / "tokenizer.json").write_text(json.dumps(raw))
    return path


@pytest.fixture
def served(tmp_path):
    return folder(tmp_path / "served", WORDS, [(3, "<end>")])


def test_the_same_tokens_are_alike_whatever_the_output_layers_are_filled_up_to(tmp_path, served):
    other = folder(tmp_path / "other", {"c": 2, "a": 0, "b": 1}, [(3, "<end>")])
    assert vocabulary_difference(served, 64, other, 128) is None


def test_pairs_of_tokens_and_scores(tmp_path, served):
    other = folder(tmp_path / "other", [["a", 0.0], ["b", -1.0], ["c", -2.0]], [(3, "<end>")])
    assert vocabulary_difference(served, 64, other, 64) is None


@pytest.mark.parametrize(
    ("vocab", "added", "text"),
    [
        (
            {"a": 0, "c": 1, "b": 2},
            [(3, "<end>")],
            "token id 1 is 'c' in its tokenizer.json, and 'b'",
        ),
        (WORDS, [], "token id 3 is no token in its tokenizer.json, and '<end>'"),
        (WORDS | {"d": 4}, [(3, "<end>")], "token id 4 is 'd' in its tokenizer.json, and no token"),
    ],
    ids=["order", "fewer", "more"],
)
def test_the_first_difference_is_named(tmp_path, served, vocab, added, text):
    other = folder(tmp_path / "other", vocab, added)
    assert text in vocabulary_difference(served, 64, other, 64)


def test_sizes_decide_where_a_tokenizer_is_missing(tmp_path, served):
    assert vocabulary_difference(served, 64, tmp_path, 64) is None
    text = "it has 96 token ids, and the model that is served has 64"
    assert vocabulary_difference(served, 64, tmp_path, 96) == text


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        '{"model": 3}',
        '{"model": {"vocab": {}}}',
        '{"model": {"vocab": {"a": [0]}}}',
        '{"model": {"vocab": {"a": 0, "b": "c"}}}',
        '{"model": {"vocab": {"a": 0}}, "added_tokens": ["b"]}',
    ],
)
def test_a_file_without_a_vocabulary_is_refused(tmp_path, served, content):
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match="holds no vocabulary that can be read"):
        vocabulary_difference(served, 64, other, 64)
