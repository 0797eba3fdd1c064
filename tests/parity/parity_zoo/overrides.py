"""Family-specific settings besides small sizes: values that must fit each other, switches that make it causal."""

from __future__ import annotations

from typing import Any

DECODER = {"is_decoder": True}
HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
GEMMA4 = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "per_layer_config": {1: {"head_dim": 32}, 3: {"head_dim": 32}},
}
QWEN4 = {
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
    "indexer_compress_ratio": 2, "ple_layer_ids": [1, 3], "ngram_vocab_size_base": 64, "split_ngram_parts": 2,
    "make_ngram_vocab_size_divisible_by": 8, "heads_per_ngram": 2, "ple_embed_dim": 32,
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    "num_hidden_layers": 4,
}  # fmt: skip
DOTS3 = {
    "num_hidden_layers": 4,
    "layer_types": [
        "indexed_attention",
        "indexed_attention",
        "sliding_attention",
        "indexed_attention",
    ],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "per_layer_config": {
        2: {"num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 32}
    },
    "head_dim": 24,
}
COMPASS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    },
}
# Towers whose sizes are lists, by stage.
FLORENCE_TOWER = {
    "depths": [1, 1], "embed_dim": [16, 16], "num_heads": [2, 2], "num_groups": [2, 2], "patch_size": [7, 3],
    "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True], "projection_dim": 64,
}  # fmt: skip
MUSE_AUDIO = {
    "patch_sizes": [16, 6],
    "hidden_sizes": [16, 16],
    "depths": [1, 1],
    "num_hidden_layers": 2,
}
BLT_PART = {"vocab_size": 260, "num_hidden_layers": 2}


def _mrope(*section: int) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [*section],
        }
    }


MROPE = _mrope(2, 3, 3)

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [1, 3]},
    "bert": DECODER,
    "bert-generation": DECODER,
    "big_bird": DECODER | {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blt": {
        "vocab_size": 260, "encoder_hash_byte_group_vocab": 512, "patcher_config": BLT_PART,
        "encoder_config": BLT_PART, "decoder_config": BLT_PART, "global_config": {"num_hidden_layers": 2},
    },
    "camembert": DECODER,
    "cohere_compass_text": COMPASS,
    "data2vec-text": DECODER,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {
        "text_config": DOTS3,
        "vision_config": {"adapter_in_dim": 64, "adapter_out_dim": 64},
        "audio_config": {"adapter_input_size": 64, "adapter_out_dim": 64},
    },
    "dots3_note_text": DOTS3,
    "electra": DECODER,
    "ernie": DECODER,
    "gemma3n": {"text_config": {"num_kv_shared_layers": 2}},
    "gemma3n_text": {
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 2,
        "layer_types": [*(["sliding_attention", "full_attention"] * 2), "sliding_attention"],
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0, 0.0],
    },
    "gemma4": {"text_config": GEMMA4},
    "gemma4_text": GEMMA4 | {"num_kv_shared_layers": 2},
    "gemma4_unified": {"text_config": GEMMA4},
    "gemma4_unified_text": GEMMA4,
    "gpt2": {"tie_word_embeddings": True},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"num_hidden_layers": 4, "layer_types": HYBRID},
    "hrm_text": {"num_hidden_layers": 2, "num_layers_per_stack": None, "L_cycles": 2},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "lfm2_moe": {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    "longcat_flash": {"head_dim": 8},
    "mamba2": {"num_heads": 8},
    "megatron-bert": DECODER,
    "ministral": {"head_dim": 16},
    "mistral": {"tie_word_embeddings": True},
    "mllama": {"text_config": {"num_hidden_layers": 4, "cross_attention_layers": [2]}},
    # With a cache, transformers cuts keys that its mask lets through; real windows are as long as the context.
    "moshi": {"sliding_window": 256},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": {"text_config": QWEN4},
    "qwen4_exp_text": QWEN4,
    "reformer": DECODER | {"axial_pos_shape": [16, 16], "axial_pos_embds_dim": [32, 32], "num_buckets": 4},
    "rembert": DECODER,
    "roberta": DECODER,
    "roberta-prelayernorm": DECODER,
    "roc_bert": DECODER,
    "roformer": DECODER,
    "text:chameleon": {"vocabulary_map": {"<image>": 8, "IMGIMGAZ": 9}, "vq_config": {"base_channels": 32}},
    "text:cohere_compass": {"text_config": COMPASS},
    "text:deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse", "sparse"], "num_experts_per_tok": 2},
        "vision_config": {"sam_config": {"global_attn_indexes": [1]}},
    },
    "text:ernie4_5_vl_moe": {
        "text_config": {
            "moe_num_experts": 8,
            **_mrope(3, 3, 2),
        },
    },
    "text:florence2": {"vision_config": FLORENCE_TOWER},
    "text:glm46v": {"text_config": MROPE},
    "text:glm4v": {"text_config": MROPE},
    "text:glm4v_moe": {"text_config": _mrope(1, 1, 2)},
    "text:glm5_next": {"text_config": {"index_kpool": 2}},
    "text:glm_ocr": {"text_config": MROPE},
    "text:glmga": {"text_config": MROPE},
    "text:granite4_vision": {
        "downsample_rate": "4/8", "deepstack_layer_map": [[0, 0], [1, 2]], "spatial_target_layers": [1],
    },
    "text:hunyuan_vl": {"text_config": {"head_dim": 16} | _mrope(2, 2, 2, 2)},
    "text:janus": {"vq_config": {"base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 16}},
    "text:molmo2": {"adapter_config": {"vision_feature_layer": [2, 1]}},
    "text:muse_spark": {"audio_config": MUSE_AUDIO},
    "text:nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "text:paddleocr_vl": {"text_config": MROPE},
    "text:qwen2_5_vl": {"text_config": MROPE},
    "text:qwen2_5_omni_thinker": {"text_config": MROPE, "vision_start_token_id": 9},
    "text:qwen2_vl": {"text_config": MROPE},
    # As moshi: the model has no window, and transformers' cache takes one from its configuration.
    "text:qwen3_omni_moe_thinker": {"text_config": MROPE | {"sliding_window": None}, "vision_start_token_id": 9},
    "xlm-roberta": DECODER,
    "xlm-roberta-xl": DECODER,
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": DECODER | {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6, "num_key_value_heads": 4,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
    },
}  # fmt: skip
