"""Conversion of a GGUF file's metadata and tensors, and rejected files."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from tenonry.config import EngineConfig
from tenonry.errors import ModelError
from tenonry_hf_hub import hooks
from tenonry_hf_hub.gguf import read_tensors
from tenonry_hf_hub.gguf.families import config_of
from tenonry_hf_hub.gguf.header import read_header
from tenonry_testkit import gguf_files
from tenonry_testkit.gguf_files import random_tensors, write


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def config(path):
    return config_of(read_header(path), path)


def test_a_file_stands_for_a_folder_of_its_own(tmp_path):
    path = write(tmp_path / "small.gguf", kind=Kind.Q8_0, tokenizer=False)
    info = hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))
    assert info.architecture == "LlamaForCausalLM"
    assert info.max_model_len == gguf_files.LENGTH
    assert info.vocab_size == len(gguf_files.vocabulary())
    assert info.dtype == "bfloat16"
    folder = tmp_path / "cache" / "tenonry" / "gguf"
    (made,) = folder.iterdir()
    assert str(made) == info.path
    assert (made / "model.gguf").resolve() == path
    again = hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))
    assert again.path == info.path
    assert list(folder.iterdir()) == [made]


def test_another_file_in_its_place_gets_another_folder(tmp_path):
    path = write(tmp_path / "small.gguf", kind=Kind.Q8_0, tokenizer=False)
    first = hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))
    write(path, name="qwen2", kind=Kind.Q8_0, tokenizer=False)
    second = hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))
    assert first.path != second.path
    assert second.architecture == "Qwen2ForCausalLM"


def test_end_tokens_of_answers_and_turns_are_known(tmp_path):
    changes = {"tokenizer.ggml.eos_token_id": 5, "tokenizer.ggml.eot_token_id": 7}
    path = write(tmp_path / "small.gguf", changes=changes, tokenizer=False)
    info = hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))
    assert info.eos_token_ids == (5, 7)


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "small.gguf", tokenizer=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set XDG_CACHE_HOME"):
        hooks.tenonry_resolve_model(EngineConfig(model=str(path), skip_tokenizer_init=True))


def test_a_folder_of_files_names_one(tmp_path):
    path = write(tmp_path / "small.gguf", tokenizer=False)
    with pytest.raises(ModelError, match=f"give one file: {path}"):
        hooks.tenonry_resolve_model(EngineConfig(model=str(tmp_path)))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_each_tensor_gets_the_name_that_transformers_has(name, tmp_path):
    found = read_tensors(write(tmp_path / "small.gguf", name))
    assert len(found) == len(gguf_files.shapes(name))
    # The library's own table, which llama.cpp's converter uses the other way round.
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    table = gguf.get_tensor_name_map(arch, gguf_files.LAYERS)
    for mine, tensor in found.items():
        stem, _, ending = mine.rpartition(".")
        assert f"{table.get_name(stem)}.{ending}" == tensor.stored_name


def test_only_query_and_key_of_llama_are_in_another_order(tmp_path):
    found = read_tensors(write(tmp_path / "a.gguf", "llama"))
    heads = {
        key.rpartition("layers.0.")[2]: each.heads for key, each in found.items() if each.heads
    }
    assert heads["self_attn.q_proj.weight"] == gguf_files.HEADS
    assert heads["self_attn.k_proj.weight"] == gguf_files.KV_HEADS
    assert len(heads) == 2 + 2 * (gguf_files.LAYERS - 1)
    assert not any(
        each.heads for each in read_tensors(write(tmp_path / "b.gguf", "qwen3")).values()
    )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (Kind.F32, "float32"),
        (Kind.F16, "float16"),
        (Kind.BF16, "bfloat16"),
        (Kind.Q4_0, "bfloat16"),
    ],
)
def test_the_data_type_is_that_of_most_weights(kind, dtype, tmp_path):
    assert config(write(tmp_path / "small.gguf", kind=kind))["dtype"] == dtype


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, {"rope_type": "default"}),
        ({"llama.rope.scaling.type": "none"}, {"rope_type": "default"}),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"rope_type": "linear", "factor": 4.0},
        ),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_positions_are_scaled_as_the_file_says(changes, wanted, tmp_path):
    path = write(tmp_path / "small.gguf", changes=changes)
    assert config(path)["rope_parameters"] == {"rope_theta": 10_000.0} | wanted


def llama3_factors(factor: float, theta: float) -> np.ndarray:
    """As llama.cpp's converter computes them."""
    size = gguf_files.HEAD_DIMS["llama"]
    frequencies = 1.0 / theta ** (np.arange(0, size, 2, dtype=np.float32) / size)
    made = []
    for frequency in frequencies:
        wave = 2 * np.pi / frequency
        if wave < 8192 / 4:
            made.append(1.0)
        elif wave > 8192:
            made.append(factor)
        else:
            smooth = (8192 / wave - 1) / 3
            made.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(made, np.float32)


def test_factors_of_llama_3_become_its_parameters(tmp_path):
    tensors = {"rope_freqs.weight": llama3_factors(32.0, 500_000.0)}
    changes = {"llama.rope.freq_base": 500_000.0}
    path = write(tmp_path / "small.gguf", tensors=tensors, changes=changes)
    assert config(path)["rope_parameters"] == {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert "rope_freqs.weight" not in {each.stored_name for each in read_tensors(path).values()}


REFUSED = {
    "another family": ("gemma3", {}, {}, "architecture 'gemma3'.*llama, qwen2, qwen3"),
    "experts": ("llama", {"llama.expert_count": 8}, {}, "with experts"),
    "in parts": ("llama", {"split.count": 3}, {}, "llama-gguf-split --merge"),
    "no sizes": ("llama", {"llama.block_count": None}, {}, r"no metadata entry llama\.block_count"),
    "sizes per layer": (
        "llama",
        {"llama.attention.head_count": [4, 4]},
        {},
        r"head_count is an array of 2",
    ),
    "a huge model": (
        "llama",
        {"llama.block_count": 1 << 30},
        {},
        "num_hidden_layers is 1073741824",
    ),
    "no heads": ("llama", {"llama.attention.head_count": 0}, {}, "num_attention_heads is 0"),
    "rotated in part": (
        "llama",
        {"llama.rope.dimension_count": 32},
        {},
        r"rope\.dimension_count is 32",
    ),
    "positions unknown": (
        "llama",
        {"llama.rope.scaling.type": "longrope"},
        {},
        r"rope\.scaling\.type is 'longrope'",
    ),
    "other factors": (
        "llama",
        {},
        {"rope_freqs.weight": np.linspace(1, 8, 32, dtype=np.float32)},
        r"factors in tensor rope_freqs\.weight",
    ),
    "no embedding": ("llama", {}, {"token_embd.weight": None}, r"no tensor token_embd\.weight"),
    "a missing tensor": (
        "llama",
        {},
        {"blk.1.ffn_down.weight": None},
        r"no tensor blk\.1\.ffn_down\.weight",
    ),
    "a missing bias": ("qwen2", {}, {"blk.0.attn_k.bias": None}, r"no tensor blk\.0\.attn_k\.bias"),
    "another shape": (
        "llama",
        {},
        {"blk.0.attn_k.weight": np.ones((64, 256), np.float32)},
        r"tensor blk\.0\.attn_k\.weight is \[64, 256\], the file's metadata ask for \[128, 256\]",
    ),
    "a tensor too many": (
        "llama",
        {},
        {"blk.0.ffn_gate_inp.weight": np.ones((8, 256), np.float32)},
        r"no place for, such as blk\.0\.ffn_gate_inp\.weight",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_model_is_refused_by_name(case, tmp_path):
    name, changes, tensors, words = REFUSED[case]
    path = write(tmp_path / "small.gguf", name, changes=changes, tensors=tensors)
    with pytest.raises(ModelError, match=words) as caught:
        hooks.tenonry_resolve_model(EngineConfig(model=str(path)))
    assert str(path) in str(caught.value)
    assert not (tmp_path / "cache").exists()


def with_type(path, name: str, number: int) -> None:
    """Change a tensor's type in the table."""
    data = bytearray(path.read_bytes())
    at = data.index(name.encode()) + len(name) + 4 + 2 * 8
    data[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (99, r"tensor blk\.0\.ffn_up\.weight is of type 99"),
        (int(Kind.I8), r"tensor blk\.0\.ffn_up\.weight is of type I8, and F32, F16"),
        (int(Kind.TQ1_0), r"of type TQ1_0, and F32, F16"),
    ],
)
def test_a_type_that_is_not_read_is_named(number, words, tmp_path):
    path = write(tmp_path / "small.gguf")
    with_type(path, "blk.0.ffn_up.weight", number)
    with pytest.raises(ModelError, match=words):
        read_tensors(path)


def test_what_is_written_is_what_transformers_writes(tmp_path):
    """Keys of config.json are those that a model saved by transformers has."""
    found = config(write(tmp_path / "small.gguf", "qwen3", tied=True))
    assert found["tie_word_embeddings"] is True
    assert found["head_dim"] == gguf_files.HEAD_DIMS["qwen3"]
    assert json.loads(json.dumps(found)) == found
    assert random_tensors("qwen3", tied=True).keys() == gguf_files.shapes("qwen3", tied=True).keys()
