"""Folders of tiny models: random weights, and a tokenizer of a few words."""

from __future__ import annotations

import json

import pytest
import torch

WORDS = [
    "a",
    "cat",
    "dog",
    "runs",
    "sleeps",
    "the",
    "on",
    "mat",
    "house",
    "red",
    "blue",
    "is",
    "who",
    "where",
    "what",
    "?",
]
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
CLASSES = {
    "bert": "BertModel",
    "bert_head": "BertForSequenceClassification",
    "bert_labels": "BertForSequenceClassification",
    "roberta": "RobertaModel",
    "modernbert": "ModernBertModel",
    "qwen3": "Qwen3Model",
    "qwen3_head": "Qwen3ForSequenceClassification",
}
VALUES = {
    "bert": {},
    "bert_head": {"num_labels": 1},
    "bert_labels": {"num_labels": 3},
    "roberta": {"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
    "modernbert": {
        "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3, "local_attention": 8,
    },
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "qwen3_head": {"num_key_value_heads": 2, "head_dim": 8, "num_labels": 1},
}  # fmt: skip


def write_tokenizer(folder, *, has_types):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    tokenizer = Tokenizer(
        models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "[PAD]",
            "unk_token": "[UNK]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "model_input_names": ["input_ids", "attention_mask", *["token_type_ids"] * has_types],
        })
    )  # fmt: skip


def write_modules(folder, *kinds, pooling=None):
    """A folder of sentence-transformers: modules by class, and the config of the pooling."""
    modules = [
        {"idx": place, "name": str(place), "path": "" if place == 0 else f"{place}_{kind}",
         "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.fixture
def modules_in():
    return write_modules


def save(name, folder):
    """A model of transformers with random weights, saved with its tokenizer; returns the model."""
    import transformers

    kind = getattr(transformers, CLASSES[name])
    model = kind(kind.config_class(**SMALL | VALUES[name])).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, 0.0, weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    write_tokenizer(folder, has_types=name.startswith("bert"))
    return model


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Name → (folder, model of transformers)."""
    made = {}
    torch.manual_seed(0)
    for name in CLASSES:
        folder = tmp_path_factory.mktemp(name)
        made[name] = folder, save(name, folder)
    write_modules(
        made["qwen3"][0],
        "Transformer",
        "Pooling",
        "Normalize",
        pooling={"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
    )
    return made
