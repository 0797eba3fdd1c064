"""Facts out of config.json, generation_config.json and tokenizer_config.json, as the field writes them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tenonry.errors import ModelError
from tenonry_hf_hub import facts, remote_code_note


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024, "n_ctx": 1024}, 1024),
        ({"text_config": {"max_position_embeddings": 512}}, 512),
        (
            {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}},
            8192,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "dynamic", "factor": 2},
            },
            8192,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"type": "longrope", "long_factor": [1.0]},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                },
            },
            163840,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            },
            4096,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {
                    "full_attention": {"rope_type": "dynamic", "factor": 4.0},
                    "sliding_attention": {"rope_type": "default"},
                },
            },
            16384,
        ),
        ({"max_position_embeddings": 4096, "sliding_window": 512}, 4096),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 131072),
        ({"max_position_embeddings": True, "n_positions": 77}, 77),
        ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 8194}, 8192),
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
    ],
)
def test_max_model_len(config, expected):
    assert facts.max_model_len(config, {}) == expected


def test_max_model_len_falls_back_to_the_tokenizer_then_to_a_warning(caplog):
    assert facts.max_model_len({}, {"model_max_length": 300}) == 300
    assert not caplog.records
    assert facts.max_model_len({}, {"model_max_length": int(1e30)}) == facts.FALLBACK_LENGTH
    assert "Set max_model_len" in caplog.text


@pytest.mark.parametrize(
    ("transformer", "tokenizer", "expected"),
    [
        ({"max_seq_length": 256}, {"model_max_length": 128}, 256),
        ({"max_seq_length": None}, {"model_max_length": 128}, 128),
        ({}, {"model_max_length": int(1e30)}, 512),
        ({"max_seq_length": 1024}, {}, 512),
        ({}, {}, 512),
    ],
)
def test_sentence_transformers_cuts_texts_at_its_own_length(transformer, tokenizer, expected):
    assert facts.length_of_texts(512, transformer, tokenizer) == expected


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": 2}, {}, (2,)),
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 2}, {}, (5, 6, 2)),
        ({}, {"eos_token_id": [2, 3]}, {}, (2, 3)),
        ({}, {"text_config": {"eos_token_id": 4}}, {}, (4,)),
        ({}, {"eos_token_id": None}, {}, ()),
        ({"eos_token_id": [True, "x", -1, 99, 7]}, {}, {}, (7,)),
        (
            {},
            {"eos_token_id": 1},
            {
                "eos_token": {"content": "<end>"},
                "added_tokens_decoder": {"8": {"content": "<end>"}, "9": {"content": "x"}},
            },
            (1, 8),
        ),
        ({}, {}, {"eos_token": "<end>", "added_tokens_decoder": {"x": {"content": "<end>"}}}, ()),
    ],
)
def test_eos_token_ids(generation, config, tokenizer, expected):
    assert facts.eos_token_ids(config, generation, tokenizer, 50) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dtype": "bfloat16", "torch_dtype": "float16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_dtype(config, expected):
    assert facts.dtype(config) == expected


def test_architecture():
    path = Path("config.json")
    assert (
        facts.architecture({"architectures": ["LlamaForCausalLM"], "auto_map": {"a": "b"}}, path)
        == "LlamaForCausalLM"
    )
    assert facts.architecture({"model_type": "llama"}, path) == "llama"
    with pytest.raises(ModelError, match=r"config\.json does not say which architecture"):
        facts.architecture({"architectures": []}, path)


def test_remote_code_is_never_run_and_said_so_when_the_architecture_is_unknown():
    """Class K: `auto_map` is not followed; it is only mentioned if the model cannot be served otherwise."""
    config = {"model_type": "odd", "auto_map": {"AutoModel": "modeling_odd.OddModel"}}
    with pytest.raises(ModelError, match=r"modeling_odd\.OddModel.*never run"):
        facts.architecture(config, Path("config.json"))
    assert remote_code_note({}) == ""


def test_vocab_size(tmp_path):
    assert facts.vocab_size({"vocab_size": 10}, tmp_path) == 10
    assert facts.vocab_size({"text_config": {"vocab_size": 11}, "vocab_size": 10}, tmp_path) == 11
    with pytest.raises(ModelError, match="no vocab_size"):
        facts.vocab_size({}, tmp_path)
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "F32", "shape": [77, 4], "data_offsets": [0, 1232]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(1232)
    )
    assert facts.vocab_size({}, tmp_path) == 77
    assert facts.vocab_size({"model_type": "gemma3"}, tmp_path) == 77
    (tmp_path / "model.safetensors").unlink()
    assert facts.vocab_size({"model_type": "gemma3"}, tmp_path) == 262_208
