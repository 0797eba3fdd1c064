"""Small random models of many families, with weights large enough that greedy choices are never close calls."""

from __future__ import annotations

import torch

SMALL = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 128, "vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2}
OPT = {
    "vocab_size": 96, "hidden_size": 48, "ffn_dim": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128, "word_embed_proj_dim": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("llama", SMALL),
    "llama-biased": ("llama", SMALL | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", SMALL),
    "qwen3": ("qwen3", SMALL | {"head_dim": 16}),
    "mistral": ("mistral", SMALL | {"sliding_window": 7}),
    "gemma": ("gemma", SMALL | {"head_dim": 16}),
    "gemma2": ("gemma2", SMALL | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16}),
    "gemma3": ("gemma3_text", SMALL | {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 16}),
    "phi3": ("phi3", SMALL),
    "mixtral": ("mixtral", SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        SMALL | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
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
}  # fmt: skip


def build(family: str, *, seed: int = 0, dtype: torch.dtype = torch.float32):
    """A model of the family; every weight is random, norms and biases included."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    name, values = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**values), dtype=dtype)
        for key, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.data.uniform_(-0.3, 0.3).add_(0.0 if key.endswith("bias") else float(weight.mean() > 0.5))
            else:
                weight.data.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
    return model.eval()


def save(family: str, folder, **options) -> None:
    """Write the model to a folder as the hub would have it."""
    build(family, **options).save_pretrained(folder, safe_serialization=True)
