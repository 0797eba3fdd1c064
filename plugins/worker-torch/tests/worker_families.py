"""Small random models of many families, with weights large enough that greedy choices are never close calls."""

from __future__ import annotations

import pytest
import torch

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
GPT2 = {
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 96,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
OPT = {
    "vocab_size": 96, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128, "word_embed_proj_dim": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "tie_word_embeddings": False,
}  # fmt: skip
WHISPER = {
    "vocab_size": 96, "d_model": 64, "decoder_layers": 3, "encoder_layers": 3, "decoder_attention_heads": 4,
    "encoder_attention_heads": 4, "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "max_target_positions": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1, "is_encoder_decoder": False,
    "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
BEAM = SMALL | {
    "head_dim": 16, "sliding_window": 6, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_group": 2, "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "dense"],
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
MIMO = SMALL | {
    "head_dim": 16, "v_head_dim": 12, "sliding_window": 7, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}  # fmt: skip
LLAMA4 = SMALL | {
    "head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 4, "num_experts_per_tok": 1,
    "attention_chunk_size": 8, "no_rope_layers": [1, 1, 0], "moe_layers": [1], "floor_scale": 4, "attn_scale": 0.4,
    "layer_types": ["chunked_attention", "chunked_attention", "full_attention"],
}  # fmt: skip
GEMMA3N = SMALL | {
    "head_dim": 16, "num_hidden_layers": 5, "intermediate_size": [96] * 5, "sliding_window": 6,
    "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
GEMMA4 = SMALL | {
    "head_dim": 16, "global_head_dim": 24, "num_hidden_layers": 5, "sliding_window": 6, "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 96, "hidden_size_per_layer_input": 16,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
MLA = SMALL | {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
DSA = MLA | {
    "index_topk": 6,
    "index_n_heads": 16,
    "index_head_dim": 12,
    "mlp_layer_types": ["dense", "sparse", "dense"],
}

# One family of each kind; tests that have a quicker test beside them serve the others at night.
USUAL = {
    "llama-biased", "gpt2", "gpt_neox", "gemma2", "gemma3", "gemma3n", "mixtral", "gpt_oss", "llama4", "deepseek_v3",
    "mimo_v2_flash",
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", SMALL),
    "llama-biased": ("llama", SMALL | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", SMALL),
    "qwen3": ("qwen3", SMALL | {"head_dim": 16}),
    "mistral": ("mistral", SMALL | {"sliding_window": 7}),
    "gemma": ("gemma", SMALL | {"head_dim": 16}),
    "gemma2": ("gemma2", SMALL | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16}),
    "gemma3": (
        "gemma3_text",
        SMALL
        | {
            "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "phi3": ("phi3", SMALL),
    "mixtral": ("mixtral", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        SMALL | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "qwen2_moe": (
        "qwen2_moe",
        SMALL
        | {
            "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "gpt_neox": ("gpt_neox", SMALL),
    "gpt2": ("gpt2", GPT2),
    "opt": ("opt", OPT),
    "olmo2": ("olmo2", SMALL),
    "granite": (
        "granite",
        SMALL
        | {
            "embedding_multiplier": 2.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2, "logits_scaling": 2.0,
        },
    ),
    "stablelm": ("stablelm", SMALL),
    "starcoder2": ("starcoder2", SMALL | {"sliding_window": 9}),
    "cohere": ("cohere", SMALL),
    # Calls attention twice per layer, with the same keys and two halves of the values.
    "diffllama": ("diffllama", SMALL),
    # The window is in the mask only.
    "phimoe": ("phimoe", SMALL | {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
    # The decoder alone: its forward pass has no `logits_to_keep`.
    "whisper": ("whisper", WHISPER),
    # Full-attention layers without rotary embedding.
    "beam": ("beam", BEAM),
    # Two stacks of layers, run several times, share layer indexes.
    "hrm_text": ("hrm_text", SMALL | {"num_hidden_layers": 2, "H_cycles": 2, "L_cycles": 2, "prefix_lm": False}),
    # Attention sinks, in all layers and in those with a window only.
    "gpt_oss": (
        "gpt_oss",
        SMALL | {"head_dim": 16, "sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "granite_swa": ("granite_swa", SMALL | {"sliding_window": 7}),
    "mimo_v2_flash": ("mimo_v2_flash", MIMO),
    # Chunks in the mask only, and layers without rotary embedding whose queries are scaled by position.
    "llama4": ("llama4_text", LLAMA4),
    # Layers that share K/V of another layer; head sizes by layer.
    "gemma3n": ("gemma3n_text", GEMMA3N),
    "gemma4": ("gemma4_text", GEMMA4),
    "deepseek_v3": ("deepseek_v3", MLA),
    # A choice of keys per query, by keys of its own.
    "deepseek_v32": ("deepseek_v32", DSA),
    "glm_moe_dsa": ("glm_moe_dsa", DSA | {"indexer_types": ["full", "shared", "full"]}),
}  # fmt: skip


# Seeds with which no greedy choice is a close call: the two best logits are at least 1/1000 of their spread apart.
SEEDS = {
    "llama": 2, "llama-biased": 2, "qwen2": 1, "qwen3": 2, "mistral": 1, "gemma": 3, "gemma2": 2, "gemma3": 0,
    "phi3": 3, "mixtral": 1, "qwen3_moe": 0, "qwen2_moe": 0, "gpt_neox": 3, "gpt2": 3, "opt": 1, "olmo2": 3,
    "granite": 0, "stablelm": 3, "starcoder2": 1, "cohere": 2, "diffllama": 4, "phimoe": 2, "whisper": 0, "beam": 5,
    "hrm_text": 2, "gpt_oss": 0, "granite_swa": 3, "mimo_v2_flash": 4, "llama4": 4, "gemma3n": 0, "gemma4": 3,
    "deepseek_v3": 0, "deepseek_v32": 0, "glm_moe_dsa": 0,
}  # fmt: skip


# What other helpers add: families that are tested in a way of their own.
OTHERS: dict[str, tuple[str, dict[str, object]]] = {}


def build(family: str, *, seed: int | None = None, dtype: torch.dtype = torch.float32):
    """A model of the family; every weight is random, norms and biases included."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = (FAMILIES | OTHERS)[family]
    if name not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no type {name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEEDS[family] if seed is None else seed)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**values), dtype=dtype)
        for key, weight in model.named_parameters():
            fill(key, weight.data)
    return model.eval()


def has_tensor_plan(family: str) -> bool:
    """Return True if the installed transformers has a tensor parallel plan for the family."""
    from transformers import CONFIG_MAPPING

    name, _ = (FAMILIES | OTHERS)[family]
    return name not in CONFIG_MAPPING or bool(CONFIG_MAPPING[name].base_model_tp_plan)


def fill(key: str, weight: torch.Tensor) -> None:
    """Move norms and biases away from their initial values, and make matrices so large that the context decides the
    next token.
    """
    if weight.dim() == 1:
        offset = float(
            weight.float().mean() > 0.5
        )  # scales start at 1, or at 0 where they are offsets from 1
        weight.uniform_(-0.3, 0.3).add_(offset) if offset else weight.uniform_(-0.1, 0.1)
    elif "embed" in key or "wte" in key or "wpe" in key:
        weight.normal_(0.0, 0.4)
    else:
        weight.normal_(0.0, 2.0 * weight.shape[-1] ** -0.5)


def save(family: str, folder, **options) -> None:
    """Write the model to a folder as the hub would have it."""
    build(family, **options).save_pretrained(folder, safe_serialization=True)
