"""Small random models whose text part is inside a multimodal wrapper."""

from __future__ import annotations

import torch
from worker_families import SMALL, fill

TEXT = SMALL | {"head_dim": 16}
LLAMA = TEXT | {"model_type": "llama"}
QWEN2 = SMALL | {"model_type": "qwen2"}
SIGLIP = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
CLIP = SIGLIP | {"model_type": "clip_vision_model", "projection_dim": 32}
PIXTRAL = SIGLIP | {"model_type": "pixtral", "head_dim": 16}
GEMMA3 = TEXT | {
    "sliding_window": 6, "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
MROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
}
QWEN_VISION = {
    "depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2,
}  # fmt: skip
TOKENS = {
    "image_token_id": 90,
    "video_token_id": 91,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}

QWEN2_5_VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_heads": 2, "patch_size": 14,
    "fullatt_block_indexes": [1],
}  # fmt: skip
QWEN3_VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64, "num_heads": 2, "patch_size": 14,
    "spatial_merge_size": 2, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
}  # fmt: skip
GLM_ROPE = {
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2],
    }
}  # fmt: skip
PHI4 = {
    "vision_config": SIGLIP | {"crop_size": 28, "image_token_id": 90, "feature_layer": -1},
    "audio_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 2, "audio_token_id": 91,
        "nemo_conv_channels": 16, "input_size": 16, "ext_pw_out_channel": 32, "depthwise_separable_out_channel": 32,
    },
}  # fmt: skip
AUDIO = {
    "num_mel_bins": 8, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 32,
    "max_source_positions": 20,
}  # fmt: skip
GRANITE_SPEECH = {
    "text_config": SMALL | {"model_type": "granite"}, "audio_token_index": 90, "has_lora_adapter": False,
    "encoder_config": {
        "hidden_dim": 32, "num_layers": 1, "num_heads": 2, "dim_head": 16, "input_dim": 16, "output_dim": 8,
        "context_size": 8,
    },
    "projector_config": {
        "model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 32, "encoder_hidden_size": 32,
    },
}  # fmt: skip
IMAGE_INDEX = {"image_token_index": 90}
IMAGE_ID = {"image_token_id": 90}

# One of each kind: windows, three positions per token, audio, adapters of its own. Others are served at night.
USUAL = {"gemma3", "gemma4", "qwen2_vl", "qwen3_vl", "phi4_multimodal", "llava", "granite_speech"}
WRAPPERS: dict[str, tuple[str, dict[str, object]]] = {
    "gemma3": (
        "gemma3",
        {"text_config": GEMMA3, "vision_config": SIGLIP, "mm_tokens_per_image": 4} | IMAGE_INDEX,
    ),
    "gemma4": (
        "gemma4",
        {
            "text_config": GEMMA3 | {
                "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 1,
                "global_head_dim": 16,
            },
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 16,
            },
            "audio_config": None, "image_token_id": 90, "video_token_id": 91, "audio_token_id": 92,
        },
    ),
    "qwen2_vl": ("qwen2_vl", {"text_config": SMALL | MROPE, "vision_config": QWEN_VISION} | TOKENS),
    "qwen2_5_vl": ("qwen2_5_vl", {"text_config": SMALL | MROPE, "vision_config": QWEN2_5_VISION} | TOKENS),
    "qwen3_vl": ("qwen3_vl", {"text_config": TEXT | MROPE, "vision_config": QWEN3_VISION} | TOKENS),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {
            "text_config": TEXT | MROPE | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
            "vision_config": QWEN3_VISION,
        } | TOKENS,
    ),
    "phi4_multimodal": ("phi4_multimodal", SMALL | PHI4),
    "got_ocr2": (
        "got_ocr2",
        {
            "text_config": QWEN2,
            "vision_config": {
                "hidden_size": 32, "mlp_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32,
                "patch_size": 16, "output_channels": 16, "global_attn_indexes": [0], "window_size": 2,
            },
        } | IMAGE_INDEX,
    ),
    "mistral3": (
        "mistral3",
        {"text_config": TEXT | {"model_type": "mistral", "sliding_window": 7}, "vision_config": PIXTRAL} | IMAGE_INDEX,
    ),
    "llava": ("llava", {"text_config": LLAMA, "vision_config": CLIP} | IMAGE_INDEX),
    "llava_next": ("llava_next", {"text_config": LLAMA, "vision_config": CLIP} | IMAGE_INDEX),
    "internvl": (
        "internvl",
        {"text_config": QWEN2, "vision_config": SIGLIP | {"image_size": [28, 28], "patch_size": [14, 14]}} | IMAGE_ID,
    ),
    "smolvlm": ("smolvlm", {"text_config": LLAMA, "vision_config": SIGLIP, "scale_factor": 2} | IMAGE_ID),
    "glm4v": (
        "glm4v",
        {
            "text_config": SMALL | GLM_ROPE,
            "vision_config": QWEN_VISION | {"hidden_size": 32, "out_hidden_size": 64, "image_size": 28},
            "image_start_token_id": 92, "image_end_token_id": 93, "video_start_token_id": 94,
            "video_end_token_id": 95,
        } | TOKENS,
    ),
    "aya_vision": (
        "aya_vision",
        {
            "text_config": SMALL | {"model_type": "cohere2", "sliding_window": 7},
            "vision_config": SIGLIP | {"model_type": "siglip_vision_model"},
        } | IMAGE_INDEX,
    ),
    "qwen2_audio": (
        "qwen2_audio",
        {"text_config": QWEN2, "audio_config": AUDIO | {"model_type": "qwen2_audio_encoder"}, "audio_token_index": 90},
    ),
    "granite_speech": ("granite_speech", GRANITE_SPEECH),
}  # fmt: skip
# Fused layers do not support their placeholder tokens, or their layers.
OWN_CODE = {"gemma4", "phi4_multimodal", "glm4v", "aya_vision", "granite_speech"}


def config_of(wrapper: str):
    from transformers import CONFIG_MAPPING

    name, values = WRAPPERS[wrapper]
    return CONFIG_MAPPING[name](**values)


def build(
    wrapper: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, is_tied: bool | None = None
):
    """The whole wrapper, towers included; every weight is random."""
    from tenonry_torch_base.weights import auto_class

    config = config_of(wrapper)
    if is_tied is not None:
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = is_tied
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class(config).from_config(config, dtype=dtype)
        for key, weight in model.named_parameters():
            fill(key, weight.data)
    return model.eval()
