"""Shapes of well-known families, so small that a run shows the cost of a step besides arithmetic. Random weights.

Standard library only; the measuring process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tenonry.errors import ConfigError

QWEN3_NEXT = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "dtype": "float32",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
# Llama 3.1's, and one of the same kind that any machine computes.
LLAMA_SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        **LLAMA,
        "vocab_size": 400,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
    },
    "8b": {
        **LLAMA,
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "initializer_range": 0.02,
    },
}
SHAPES: dict[str, dict[str, Any]] = {"tiny-qwen3-next": QWEN3_NEXT, **LLAMA_SHAPES}


def write_shape(name: str, folder: Path) -> None:
    """The configuration of the shape into `folder`; `load_format` "dummy" makes its weights. Raises ConfigError."""
    if name not in SHAPES:
        raise ConfigError(f"there is no shape '{name}', only {', '.join(sorted(SHAPES))}")
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=1), "utf-8")
