"""Writes a folder with a Llama as a GGUF file, for figures of such files.

Blocks of K-quants are made by llama.cpp itself, whose shared library `TENONRY_GGML` names: any that has
`ggml_quantize_chunk`, such as the one in the wheel of xllamacpp.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

GGML = "TENONRY_GGML"
ROTATED = ("attn_q.weight", "attn_k.weight")


def write(folder: Path, path: Path, kind: Kind) -> Path:
    """All matrices in one kind; those whose rows are not whole blocks, and of K-quants the ends, in Q8_0."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for key, tensor in load_file(folder / "model.safetensors").items():
        stem, _, ending = key.rpartition(".")
        name = f"{table.get_name(stem)}.{ending}"
        values = tensor.float().numpy()
        if name.endswith(ROTATED):
            count = heads[name.split(".")[2]]
            pairs = values.reshape(count, 2, -1, values.shape[1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        chosen = _kind_of(values, name, kind)
        writer.add_tensor(name, blocks(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind_of(values: np.ndarray, name: str, kind: Kind) -> Kind:
    if values.ndim == 1:
        return Kind.F32
    is_end = kind.name.endswith("_K") and name in {"token_embd.weight", "output.weight"}
    if is_end or values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return Kind.Q8_0
    return kind


def blocks(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Quantise to blocks, by the library if it can, else by llama.cpp."""
    if not kind.name.endswith("_K"):
        return gguf.quantize(values, kind)
    ggml = ctypes.CDLL(os.environ[GGML])
    made = np.empty(
        (values.shape[0], values.shape[1] // 256 * gguf.GGML_QUANT_SIZES[kind][1]), np.uint8
    )
    source = np.ascontiguousarray(values, np.float32)
    quantise = ggml.ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = (
        [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    )
    size = quantise(int(kind), source.ctypes.data, made.ctypes.data, 0, *values.shape, None)
    if size != made.nbytes:
        raise RuntimeError(f"llama.cpp wrote {size} bytes, not {made.nbytes}")
    return made
