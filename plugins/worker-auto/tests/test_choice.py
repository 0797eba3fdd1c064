"""Candidates for a model."""

from __future__ import annotations

import pytest

from tenonry.info import ModelInfo
from tenonry_worker_auto.choice import chosen_by_model

ALL = ("torch", "transformers", "pooling")


def model(architecture, path="/nowhere"):
    return ModelInfo(
        name="test", path=str(path), architecture=architecture, max_model_len=8, vocab_size=8
    )


@pytest.mark.parametrize(
    "architecture", ["BertModel", "Qwen3Model", "Qwen3ForSequenceClassification", "BertForMaskedLM"]
)
def test_a_class_that_cannot_generate_pools(architecture):
    assert chosen_by_model(ALL, model(architecture)) == ("pooling",)
    assert chosen_by_model(("torch",), model(architecture)) == ("torch",)


@pytest.mark.parametrize(
    "architecture", ["Qwen3ForCausalLM", "GPT2LMHeadModel", "EncoderDecoderModel", "bert", "Test"]
)
def test_any_other_generates(architecture):
    assert chosen_by_model(ALL, model(architecture)) == ("torch", "transformers")


def test_a_folder_of_sentence_transformers_pools(tmp_path):
    (tmp_path / "modules.json").write_text("[]")
    assert chosen_by_model(ALL, model("Qwen3ForCausalLM", tmp_path)) == ("pooling",)
