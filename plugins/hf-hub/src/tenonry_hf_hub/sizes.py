"""Sizes in config.json, checked before any code builds a model of them. Front end and workers.

A configuration is untrusted data: a number of layers may be a billion, a string, or negative. Each is rejected in one
sentence, before memory or time is spent. Sizes within bounds may still be wrong; that is detected when the model is
built without storage, and when its tensors are compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tenonry.errors import ModelError

MAX_DEPTH = 8  # of objects inside objects
MAX_LIST = 1 << 16
PER_LAYER = ("layer_types",)
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


class _Kind(NamedTuple):
    """Keys that mean one kind of size, and its bounds. `least` is 0 where nothing of the kind is a model, too."""

    keys: re.Pattern[str]
    least: int
    most: int


def _kind(pattern: str, least: int, most: int) -> _Kind:
    return _Kind(re.compile(rf"(?:{pattern})\Z"), least, most)


# The first that fits a key counts. The largest published models are a hundredth of these.
KINDS = (
    _kind("num_hidden_layers|n_layers?|num_layers", 1, 4096),
    _kind(r"(\w+_)?(depth|layers|blocks)|num_nextn_predict_layers", 0, 4096),
    _kind("hidden_size|d_model|n_embd|n_head|num_attention_heads|num_heads", 1, 1 << 20),
    _kind("head_dim", 0, 1 << 20),
    _kind("intermediate_size|num_key_value_heads|num_kv_heads|n_inner|ffn_dim", 1, 1 << 22),
    _kind(r"(\w+_)?(size|dim|rank|width)", -1, 1 << 28),  # -1: no limit
    _kind(
        r"num_(\w+_)?(experts?|heads|groups|labels|codebooks|stages)(\w+)?|\w+_heads", 0, 1 << 16
    ),
    _kind(r"max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length", 1, 1 << 40),
)


def check_sizes(config: dict[str, Any], file: Path | str) -> None:
    """Raises ModelError naming the file, the key, the value and the bound."""
    for reason in _reasons(config, "", 0):
        raise ModelError(f"{file}: {reason}; download the model again, or correct the file")


def _reasons(config: dict[str, Any], prefix: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        yield f"{prefix.rstrip('.')} is nested more than {MAX_DEPTH} deep"
        return
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _reasons(value, f"{name}.", depth + 1)
        elif isinstance(value, list) and len(value) > MAX_LIST:
            yield f"{name} has {len(value)} entries, and at most {MAX_LIST} are taken"
        elif value is not None:
            yield from _size_reasons(name, key, value)
    yield from _head_reasons(config, prefix)
    yield from _layer_reasons(config, prefix)


def _size_reasons(name: str, key: str, value: Any) -> Iterator[str]:
    kind = next((kind for kind in KINDS if kind.keys.match(key)), None)
    if kind is None or isinstance(value, bool):
        return
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and kind.least:
            yield f"{name} is {item[:40]!r}, which is no number"
        elif isinstance(item, int | float) and not kind.least <= item <= kind.most:
            yield f"{name} is {item}, which is not from {kind.least} to {kind.most}"


def _head_reasons(config: dict[str, Any], prefix: str) -> Iterator[str]:
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        yield f"{prefix}num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"


def _layer_reasons(config: dict[str, Any], prefix: str) -> Iterator[str]:
    count = next((config[key] for key in LAYER_COUNTS if isinstance(config.get(key), int)), None)
    for key in PER_LAYER:
        types = config.get(key)
        if isinstance(types, list) and types and count is not None and len(types) < count:
            yield f"{prefix}{key} names {len(types)} layers, and the model has {count}"
