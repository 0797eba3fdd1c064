"""Supported families of GGUF files: config.json from metadata, and the tensors of such a model.

Any process. Keys of metadata are those of the format's documentation; tensors have llama.cpp's names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf.header import Count, Header
from tenonry_hf_hub.gguf.rope import rope_parameters
from tenonry_hf_hub.sizes import check_sizes

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
QUERY_BIAS = "blk.0.attn_q.bias"
END_TOKENS = ("eos", "eot", "eom")


class Family(NamedTuple):
    """`biases`: parts of attention that always have one. `swaps_halves`: rows of query and key are stored in another
    order, the two numbers that are rotated together next to each other.
    """

    architecture: str
    biases: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    swaps_halves: bool = False


FAMILIES = {
    "llama": Family("LlamaForCausalLM", swaps_halves=True),
    "qwen2": Family("Qwen2ForCausalLM", biases=("q", "k", "v")),
    "qwen3": Family("Qwen3ForCausalLM", norms=("q", "k")),
}


class Place(NamedTuple):
    """Destination of a tensor: its name in transformers, its shape there, and the number of heads whose rows are
    reordered to the order of transformers; 0 leaves them.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0


def family_of(header: Header, path: Path) -> tuple[str, Family]:
    """Architecture name and family. Raises ModelError that lists the supported ones."""
    name = header.metadata.get("general.architecture")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or not isinstance(name, str):
        raise ModelError(
            f"{path} holds a model of architecture {str(name)[:80]!r}; GGUF files are read of {', '.join(FAMILIES)}; "
            "take the model's safetensors"
        )
    if _optional(header, "split.count", 1) > 1:
        raise ModelError(
            f"{path} is one part of a model in several files; join them first: llama-gguf-split --merge"
        )
    if _optional(header, f"{name}.expert_count", 0) > 0:
        raise ModelError(
            f"{path} holds a model with experts, which is not read from GGUF; take the model's safetensors"
        )
    return name, family


def config_of(header: Header, path: Path) -> dict[str, Any]:
    """config.json of the model. Raises ModelError that names the entry which is missing or is no size."""
    name, family = family_of(header, path)

    def number(key: str) -> Any:
        return _number(header, f"{name}.{key}", path)

    hidden = number("embedding_length")
    heads = number("attention.head_count")
    head_dim = _optional(header, f"{name}.attention.key_length", hidden // max(heads, 1))
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": name,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _optional(header, f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "vocab_size": _rows(header, EMBEDDING, path),
        "tie_word_embeddings": HEAD not in header.tensors,
        "attention_bias": bool(family.biases) or QUERY_BIAS in header.tensors,
        "dtype": dtype_of(header),
    }
    for key in ("bos", "eos"):
        token = header.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int):
            config[f"{key}_token_id"] = token
    check_sizes(config, path)
    for key, needed in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        found = _optional(header, f"{name}.{key}", needed)
        if found != needed:
            raise ModelError(
                f"{path}: {name}.{key} is {found}, and only heads of one size, {needed}, that are rotated as a whole "
                "are read from GGUF; take the model's safetensors"
            )
    config["rope_parameters"] = rope_parameters(header, name, head_dim, path)
    return config


def generation_config_of(header: Header) -> dict[str, Any]:
    """All tokens that end an answer."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in END_TOKENS]
    ends = [header.metadata[key] for key in keys if isinstance(header.metadata.get(key), int)]
    return {"eos_token_id": list(dict.fromkeys(ends))} if ends else {}


def dtype_of(header: Header) -> str:
    """Data type of most matrices; bfloat16 for quantised ones."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.kind] = sizes.get(tensor.kind, 0) + tensor.end - tensor.begin
    largest = max(sizes, key=sizes.__getitem__, default="F32")
    return {"F32": "float32", "F16": "float16"}.get(largest, "bfloat16")


def places(config: dict[str, Any], family: Family) -> Iterator[tuple[str, Place]]:
    """Destination of each tensor of such a model, by its name in the file."""
    hidden = config["hidden_size"]
    vocab = config["vocab_size"]
    yield EMBEDDING, Place("model.embed_tokens.weight", (vocab, hidden))
    yield "output_norm.weight", Place("model.norm.weight", (hidden,))
    if not config["tie_word_embeddings"]:
        yield HEAD, Place("lm_head.weight", (vocab, hidden))
    for number in range(config["num_hidden_layers"]):
        for name, place in _layer(config, family):
            yield f"blk.{number}.{name}", place._replace(name=f"model.layers.{number}.{place.name}")


def _layer(config: dict[str, Any], family: Family) -> Iterator[tuple[str, Place]]:
    hidden = config["hidden_size"]
    inner = config["intermediate_size"]
    yield "attn_norm.weight", Place("input_layernorm.weight", (hidden,))
    yield "ffn_norm.weight", Place("post_attention_layernorm.weight", (hidden,))
    yield "ffn_gate.weight", Place("mlp.gate_proj.weight", (inner, hidden))
    yield "ffn_up.weight", Place("mlp.up_proj.weight", (inner, hidden))
    yield "ffn_down.weight", Place("mlp.down_proj.weight", (hidden, inner))
    yield from _attention(config, family)


def _attention(config: dict[str, Any], family: Family) -> Iterator[tuple[str, Place]]:
    hidden = config["hidden_size"]
    size = config["head_dim"]
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        swapped = count if family.swaps_halves and part != "v" else 0
        rows = count * size
        module = f"self_attn.{part}_proj"
        yield f"attn_{part}.weight", Place(f"{module}.weight", (rows, hidden), swapped)
        if config["attention_bias"]:
            yield f"attn_{part}.bias", Place(f"{module}.bias", (rows,), swapped)
        if part in family.norms:
            yield f"attn_{part}_norm.weight", Place(f"self_attn.{part}_norm.weight", (size,))
    yield "attn_output.weight", Place("self_attn.o_proj.weight", (hidden, heads * size))
    if config["attention_bias"] and not family.biases:
        yield "attn_output.bias", Place("self_attn.o_proj.bias", (hidden,))


def _rows(header: Header, name: str, path: Path) -> int:
    tensor = header.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{path} has no tensor {name}; download it again, or take another file")
    return tensor.shape[0]


def _number(header: Header, key: str, path: Path) -> Any:
    found = header.metadata.get(key)
    if found is None:
        raise ModelError(
            f"{path} has no metadata entry {key}; download it again, or take another file"
        )
    if isinstance(found, Count) or not isinstance(found, int | float):
        shown = f"an array of {found.elements}" if isinstance(found, Count) else repr(found)[:80]
        raise ModelError(f"{path}: {key} is {shown}, and one number is read of this family")
    return found


def _optional(header: Header, key: str, default: int) -> Any:
    found = header.metadata.get(key)
    return found if isinstance(found, int | float) else default
