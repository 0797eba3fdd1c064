"""Writes a Qwen3 checkpoint as a GGUF file without a vocabulary: matrices in bfloat16, norms in float32. Child process.

The checkpoint's own numbers, so that llama.cpp reads as many bytes per step as other engines.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ARCHITECTURE = "Qwen3ForCausalLM"
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


class Tensor(NamedTuple):
    """`bits` u16[shape]: bfloat16."""

    name: str
    bits: Any


def write_gguf(folder: Path, target: Path) -> None:
    """Raises RuntimeError for another architecture or other numbers: then put a .gguf file into the model's folder."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config["architectures"] != [ARCHITECTURE] or config.get("dtype") != "bfloat16":
        raise RuntimeError(
            f"{folder} is {config['architectures']} in {config.get('dtype')}, and only {ARCHITECTURE} in bfloat16 is "
            "turned into GGUF here; put the model's .gguf file into its folder"
        )
    gguf = importlib.import_module("gguf")
    numpy = importlib.import_module("numpy")
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    add_settings(writer, config)
    for tensor in read_tensors(folder, numpy):
        if tensor.bits.ndim == 1:
            norm = (tensor.bits.astype(numpy.uint32) << 16).view(numpy.float32)
            writer.add_tensor(tensor.name, norm)
        else:
            raw_type = gguf.GGMLQuantizationType.BF16
            as_bytes = numpy.ascontiguousarray(tensor.bits).view(numpy.uint8)
            writer.add_tensor(tensor.name, as_bytes, raw_dtype=raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def add_settings(writer: Any, config: dict[str, Any]) -> None:
    """Add the keys that llama.cpp requires of a Qwen3 model; ids need no vocabulary, only its size."""
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")


def read_tensors(folder: Path, numpy: Any) -> Iterator[Tensor]:
    """Every tensor of the checkpoint under llama.cpp's name."""
    for file in sorted(folder.glob("*.safetensors")):
        data = numpy.memmap(file, dtype=numpy.uint8, mode="r")
        (length,) = struct.unpack("<Q", data[:8].tobytes())
        header = json.loads(data[8 : 8 + length].tobytes())
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            bits = data[8 + length + begin : 8 + length + end].view(numpy.uint16)
            yield Tensor(gguf_name(name), bits.reshape(entry["shape"]))


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight`."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part = rest.removesuffix(".weight")
    return f"blk.{layer}.{NAMES[part]}.weight"
