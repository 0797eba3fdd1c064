"""Small random models with layers that keep state by row."""

from __future__ import annotations

import worker_families

SMALL = worker_families.SMALL

ONLY_STATE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "expand": 2,
    "conv_kernel": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4,
    "mamba_expand": 2, "mamba_chunk_size": 16,
}  # fmt: skip
LATENT = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
    "n_group": 1, "topk_group": 1, "linear_num_heads": 4, "linear_head_dim": 16,
}  # fmt: skip
CONV = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}

FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3_next": ("qwen3_next", SMALL | DELTA | EXPERTS),
    "mamba2": (
        "mamba2",
        ONLY_STATE | {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16},
    ),
    "mamba": ("mamba", ONLY_STATE | {"state_size": 8}),
    "lfm2": ("lfm2", SMALL | CONV),
    "falcon_h1": ("falcon_h1", SMALL | MAMBA2 | {"mamba_d_ssm": 128, "num_hidden_layers": 2}),
    "granitemoehybrid": (
        "granitemoehybrid",
        SMALL
        | MAMBA2
        | {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 4,
            "num_experts_per_tok": 2, "shared_intermediate_size": 48,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        SMALL
        | {
            "layers_block_type": ["mamba", "moe", "attention", "mamba"], "mamba_num_heads": 8, "mamba_head_dim": 16,
            "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4, "expand": 2, "chunk_size": 16, "head_dim": 16,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "jamba": (
        "jamba",
        SMALL
        | {
            "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
            "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2,
            "mamba_dt_rank": 4,
        },
    ),
    "zamba": (
        "zamba",
        SMALL
        | {
            "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
            "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4, "n_mamba_heads": 2,
            "attention_hidden_size": 128, "attention_head_dim": 32,
        },
    ),
    "zamba2": (
        "zamba2",
        SMALL
        | {
            "num_hidden_layers": 4, "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 2,
            "n_mamba_heads": 8, "chunk_size": 16, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "hybrid_layer_ids": [1, 3], "num_mem_blocks": 1, "use_shared_attention_adapter": False, "adapter_rank": 4,
        },
    ),
    "kimi_linear": (
        "kimi_linear",
        SMALL | LATENT | EXPERTS | {"layer_types": DELTA["layer_types"], "n_routed_experts": 4},
    ),
    "qwen3_5_text": ("qwen3_5_text", SMALL | DELTA),
    "zaya": ("zaya", SMALL | {"num_experts": 4, "head_dim": 16, "num_hidden_layers": 2}),
}  # fmt: skip
SEEDS = dict.fromkeys(FAMILIES, 0)
worker_families.OTHERS.update(FAMILIES)
worker_families.SEEDS.update(SEEDS)
