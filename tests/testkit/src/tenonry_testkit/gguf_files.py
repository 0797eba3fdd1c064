"""GGUF files of small random models, in the format of llama.cpp's converter, written with the library `gguf`, for tests
of readers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

HIDDEN = 256
INNER = 512
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIMS = {"llama": 64, "qwen2": 64, "qwen3": 128}
LENGTH = 256
SPREAD = 0.08
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
MERGES = ["t h", "th e", "Ġ the", "a n", "an d", "Ġ a", "i n"]


def byte_alphabet() -> list[str]:
    """Characters for bytes in byte-level vocabularies: printable ones unchanged, all others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable}
    shown |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [shown[byte] for byte in range(256)]


def vocabulary() -> list[str]:
    """Bytes, results of merges, special tokens."""
    return byte_alphabet() + [merge.replace(" ", "") for merge in MERGES] + SPECIAL


def shapes(name: str, *, tied: bool = False) -> dict[str, tuple[int, ...]]:
    """Shapes of the model family's tensors."""
    vocab = len(vocabulary())
    size = HEAD_DIMS.get(name, 64)
    layer = {
        "attn_norm.weight": (HIDDEN,),
        "ffn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HEADS * size, HIDDEN),
        "attn_k.weight": (KV_HEADS * size, HIDDEN),
        "attn_v.weight": (KV_HEADS * size, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * size),
        "ffn_gate.weight": (INNER, HIDDEN),
        "ffn_up.weight": (INNER, HIDDEN),
        "ffn_down.weight": (HIDDEN, INNER),
    }
    if name == "qwen2":
        layer |= {
            "attn_q.bias": (HEADS * size,),
            "attn_k.bias": (KV_HEADS * size,),
            "attn_v.bias": (KV_HEADS * size,),
        }
    if name == "qwen3":
        layer |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
    found = {"token_embd.weight": (vocab, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied:
        found["output.weight"] = (vocab, HIDDEN)
    for number in range(LAYERS):
        found |= {f"blk.{number}.{key}": shape for key, shape in layer.items()}
    return found


def random_tensors(name: str, *, tied: bool = False) -> dict[str, np.ndarray]:
    """Floats; norms near 1."""
    rng = np.random.default_rng(11)
    found = {}
    for key, shape in shapes(name, tied=tied).items():
        values = rng.standard_normal(shape).astype(np.float32) * SPREAD
        found[key] = values + 1 if key.endswith("norm.weight") else values
    return found


def blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Quantise to blocks of a kind; random ones with scales of the right size if the library cannot write it."""
    try:
        return gguf.quantize(values, kind)
    except NotImplementedError:
        return random_blocks(values.shape, kind)


def random_blocks(shape: tuple[int, ...], kind: Kind) -> np.ndarray:
    """Random bytes, with scales small enough for a model."""
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(sum(shape) + int(kind))
    rows = int(np.prod(shape[:-1]))
    found = rng.integers(0, 256, (rows, shape[-1] // per_block, size), np.uint8)
    for place, scale in SCALES[kind].items():
        halves = rng.uniform(scale / 2, scale, found.shape[:2]).astype(np.float16)
        found[:, :, place : place + 2] = halves[:, :, None].view(np.uint8)
    return found.reshape(rows, -1)


# Positions and magnitudes of numbers of 16 bits in a block.
SCALES = {
    Kind.Q2_K: {80: 0.006, 82: 0.006},
    Kind.Q3_K: {108: 0.002},
    Kind.Q4_K: {0: 0.0004, 2: 0.003},
    Kind.Q5_K: {0: 0.0002, 2: 0.003},
    Kind.Q6_K: {208: 0.00006},
    Kind.IQ4_NL: {0: 0.001},
    Kind.IQ4_XS: {0: 0.00005},
}


def metadata(name: str) -> dict[str, Any]:
    """Facts of the model, without those of the tokenizer."""
    size = HEAD_DIMS.get(name, 64)
    return {
        "block_count": LAYERS,
        "context_length": LENGTH,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": size,
        "attention.value_length": size,
        "rope.dimension_count": size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }


def write(
    path: Path,
    name: str = "llama",
    kind: Kind = Kind.F32,
    *,
    tensors: dict[str, np.ndarray] | None = None,
    changes: dict[str, Any] | None = None,
    tied: bool = False,
    tokenizer: bool = True,
) -> Path:
    """Write a file whose matrices are of one kind. `tensors` replaces some; None omits one."""
    writer = gguf.GGUFWriter(path, name)
    facts = {f"{name}.{key}": value for key, value in metadata(name).items()} | (changes or {})
    for key, value in facts.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    if tokenizer:
        add_tokenizer(writer)
    for key, values in (random_tensors(name, tied=tied) | (tensors or {})).items():
        if values is None:
            continue
        chosen = kind if values.ndim > 1 else Kind.F32
        data = blocks(values, chosen)
        writer.add_tensor(key, data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Add a byte-level tokenizer like Qwen's."""
    tokens = vocabulary()
    normal = len(tokens) - len(SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * normal + [3] * len(SPECIAL))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(normal)
    writer.add_eos_token_id(normal + 1)
    writer.add_add_bos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)
