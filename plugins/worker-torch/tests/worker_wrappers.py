"""Small random models whose text part stands inside a wrapper that also sees or hears."""

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

WRAPPERS: dict[str, tuple[str, dict[str, object]]] = {
    "gemma3": (
        "gemma3",
        {"text_config": GEMMA3, "vision_config": SIGLIP, "image_token_index": 90, "mm_tokens_per_image": 4},
    ),
    "llava": ("llava", {"text_config": LLAMA, "vision_config": CLIP, "image_token_index": 90}),
    "mistral3": (
        "mistral3",
        {
            "text_config": TEXT | {"model_type": "mistral", "sliding_window": 7}, "vision_config": PIXTRAL,
            "image_token_index": 90,
        },
    ),
    "qwen2_vl": ("qwen2_vl", {"text_config": SMALL | MROPE, "vision_config": QWEN_VISION} | TOKENS),
}  # fmt: skip


def config_of(wrapper: str):
    from transformers import CONFIG_MAPPING

    name, values = WRAPPERS[wrapper]
    return CONFIG_MAPPING[name](**values)


def build(wrapper: str, *, seed: int = 0, dtype: torch.dtype = torch.float32):
    """The whole wrapper, towers included; every weight is random."""
    from tenonry_torch_base.weights import auto_class

    config = config_of(wrapper)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = auto_class(config).from_config(config, dtype=dtype)
        for key, weight in model.named_parameters():
            fill(key, weight.data)
    return model.eval()
