"""Estimates of a model's memory from its files, and the check at the start."""

from __future__ import annotations

import dataclasses
import json
import struct

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.info import ModelInfo
from tenonry_openai_server.hosting.memory import (
    GPU_PROCESS_BYTES,
    PROCESS_BYTES,
    estimate,
    gpu_memory,
    host_memory,
    with_planned_cache,
)
from tenonry_openai_server.hosting.settings import ModelSpec
from tenonry_openai_server.hosting.starter import check_fits, examined
from tenonry_openai_server.settings import ServerConfig

GIB = 1 << 30
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}
OF_TOKEN = 2 * 3 * 2 * 16 * 2  # K and V of 3 layers with 2 heads of 16 in 2 bytes


@pytest.fixture
def info(tmp_path):
    """A model of 1000 elements in float32 and 100 bytes of another type."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES))
    tensors = {
        "w": {"dtype": "F32", "shape": [10, 100], "data_offsets": [0, 4000]},
        "q": {"dtype": "I8", "shape": [100], "data_offsets": [4000, 4100]},
    }
    header = json.dumps(tensors).encode()
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(4100)
    )
    return ModelInfo(
        name="m",
        path=str(tmp_path),
        architecture="A",
        max_model_len=128,
        vocab_size=8,
        dtype="bfloat16",
    )


def config(**values):
    return EngineConfig(model="m", device="cpu", **values)


def test_weights_count_in_the_type_of_the_computation(info):
    assert estimate(config(), info, GIB).weights == 2100
    assert estimate(config(dtype="float32"), info, GIB).weights == 4100
    assert estimate(config(data_parallel_size=2), info, GIB).weights == 4200


Q8_0, Q2_K = 8, 10
GGUF_FACTS = {
    "embedding_length": 256,
    "feed_forward_length": 256,
    "block_count": 1,
    "attention.head_count": 1,
    "context_length": 128,
}


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def gguf_file(kind, size):
    """A GGUF model whose nine matrices, 256 × 256, have `kind`, and `size` bytes each, and three vectors float32."""
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    matrices = ["token_embd", "output", *(f"blk.0.{name}" for name in names)]
    vectors = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(matrices) + len(vectors), len(GGUF_FACTS) + 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
    for key, value in GGUF_FACTS.items():
        head += text(f"llama.{key}") + struct.pack("<II", 4, value)
    offset = 0
    for name in (*matrices, *vectors):
        shape, number, taken = ((256, 256), kind, size) if name in matrices else ((256,), 0, 1024)
        head += text(f"{name}.weight") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", number, offset)
        offset += taken
    return head + bytes(-len(head) % 32 + offset)


def test_matrices_of_a_gguf_file_keep_its_bits(info, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    file = tmp_path / "model.gguf"
    elements, vectors, stored = 256 * 256, 3 * 256, 256 * 8 * 34
    file.write_bytes(gguf_file(Q8_0, stored))
    embedding = 2 * elements  # looked up as floats, besides
    assert estimate(config(), info, GIB).weights == 9 * stored + embedding + 2 * vectors
    exact = estimate(config(dtype="float32"), info, GIB)
    assert exact.weights == 4 * (9 * elements + vectors)
    file.write_bytes(gguf_file(Q2_K, 256 * 84))
    assert estimate(config(), info, GIB).weights == 2 * (9 * elements + vectors)


def test_the_cache_is_what_all_sequences_can_use(info):
    memory = estimate(config(max_num_seqs=2), info, 4 * GIB)
    assert memory.kv_cache == 2 * 128 * OF_TOKEN
    assert memory.process == PROCESS_BYTES
    assert memory.total == 2100 + memory.kv_cache + PROCESS_BYTES


def test_the_cache_takes_a_quarter_of_a_small_budget(info):
    left = 1000
    memory = estimate(config(), info, PROCESS_BYTES + 2100 + left)
    assert memory.kv_cache == left // 4


def test_the_engine_gets_the_planned_cache(info):
    memory = estimate(config(max_num_seqs=2), info, 4 * GIB)
    assert with_planned_cache(config(), memory).kv_cache_memory_bytes == memory.kv_cache
    given = config(kv_cache_memory_bytes=12345)
    assert estimate(given, info, 4 * GIB).kv_cache == 12345
    blocks = config(num_gpu_blocks_override=10)
    assert estimate(blocks, info, 4 * GIB).kv_cache == 160 * OF_TOKEN
    assert with_planned_cache(blocks, memory) == blocks


def test_a_model_with_other_sizes_takes_a_share(info, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    memory = estimate(config(), info, PROCESS_BYTES + 2100 + 4000)
    assert memory.kv_cache == 1000


def test_a_gpu_holds_a_share_or_the_given_cache(info):
    shared = EngineConfig(model="m", device="cuda")
    share = estimate(shared, info, 10 * GIB)
    assert share.total == 9 * GIB
    assert share.kv_cache == 9 * GIB - 2100 - GPU_PROCESS_BYTES
    planned = with_planned_cache(shared, share)
    assert planned.kv_cache_memory_bytes == share.kv_cache
    assert planned.gpu_memory_utilization == 1  # else other models would be subtracted from a share
    given = estimate(
        EngineConfig(model="m", device="cuda", kv_cache_memory_bytes=GIB), info, 10 * GIB
    )
    assert given.total == 2100 + GIB + GPU_PROCESS_BYTES


def test_free_memory_is_that_of_the_control_group(tmp_path):
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert host_memory(tmp_path) == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(tmp_path) > 2000


@pytest.mark.integration
def test_the_gpu_with_the_least_free_memory_counts(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 300\necho 200\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu_memory() == 200 << 20
    program.write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(ConfigError, match="give --model-memory-budget"):
        gpu_memory()


def spec(model, *, pinned=False, **values):
    made = EngineConfig(model=model, device="cpu", served_model_name=("m",), **values)
    return ModelSpec(("m",), made, ServerConfig(), pinned)


def test_a_model_that_never_fits_is_refused_at_the_start_with_the_numbers():
    budget = 600 << 20
    model = examined(spec("demo", kv_cache_memory_bytes=GIB), budget)
    with pytest.raises(
        ConfigError, match=r"the model 'm' needs 1\.51 GiB \(weights 0\.01 GiB"
    ) as refused:
        check_fits([model], budget)
    assert "the budget is 0.59 GiB" in str(refused.value)
    check_fits([model], 2 * GIB)


def test_pinned_models_must_fit_together_and_leave_room(tmp_path):
    pinned = [
        examined(spec("demo", pinned=True, kv_cache_memory_bytes=GIB), 4 * GIB) for _ in range(2)
    ]
    with pytest.raises(ConfigError, match=r"pin_model: m, m need 3\.0. GiB together"):
        check_fits(pinned, 2 * GIB)
    other = examined(spec("demo", kv_cache_memory_bytes=GIB), 4 * GIB)
    with pytest.raises(ConfigError, match=r"of which pinned models take 1\.51 GiB"):
        check_fits([pinned[0], other], 2 * GIB)


def test_a_model_that_is_none_is_refused_at_the_start_by_its_name():
    with pytest.raises(ConfigError, match=r"^model 'm': model '/no/such/folder': "):
        examined(spec("/no/such/folder"), GIB)
    alone = spec("/no/such/folder")
    alone = dataclasses.replace(alone, names=("/no/such/folder",))
    with pytest.raises(ConfigError, match=r"^model '/no/such/folder': the folder /no/such/folder "):
        examined(alone, GIB)
    with pytest.raises(ConfigError, match="model 'm': unknown setting 'max_num_seq'"):
        examined(spec("demo", max_num_seq=1), GIB)
