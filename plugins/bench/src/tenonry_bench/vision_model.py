"""A tiny model that reads images, as a folder without weights: `load_format` "dummy" makes those. Measuring process.

Its tokenizer has a token per byte, so that any text, schema and image can be sent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ("<|end|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
END, VISION_START, IMAGE, VISION_END, VIDEO = range(256, 256 + len(SPECIAL))
CONFIG = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "dtype": "float32",
    "eos_token_id": END,
    "image_token_id": IMAGE,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
    "video_token_id": VIDEO,
    "text_config": {
        "model_type": "qwen2_vl_text",
        "vocab_size": 272,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": END,
        "eos_token_id": END,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 1, 2],
        },
    },
    "vision_config": {
        "depth": 1,
        "embed_dim": 32,
        "hidden_size": 32,
        "num_heads": 2,
        "patch_size": 14,
        "spatial_merge_size": 2,
    },
}
IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 56 * 56,
    "max_pixels": 448 * 448,
}
TEMPLATE = (
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def write_vision_model(folder: Path) -> Path:
    """Write it into a folder; returns that."""
    files: dict[str, dict[str, Any]] = {
        "config.json": CONFIG,
        "preprocessor_config.json": IMAGES,
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "chat_template": TEMPLATE,
        },
    }
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=1), "utf-8")
    return folder


def _tokenizer() -> dict[str, Any]:
    """As the library tokenizers stores it: the bytes as GPT-2 spells them, and no merges."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        spelled.setdefault(byte, chr(256 + len(spelled) - len(plain)))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 256 + place, "content": text, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for place, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: byte for byte, text in sorted(spelled.items())},
            "merges": [],
        },
    }
