"""Small random models that see, as folders: weights, configuration, tokenizer, chat template, image processor; and what
`generate` of transformers makes of a chat with images.
"""

from __future__ import annotations

import base64
import inspect
import io
import json

import numpy as np
import torch
from PIL import Image

WORDS = [
    "<unk>", "<s>", "</s>", "what", "is", "in", "and", "a", "cat", "describe", "user", "assistant", ":", "?",
]  # fmt: skip
SPECIAL = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} : {% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %} "
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
VOCAB_SIZE = 96
TEXT = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
QWEN2_VL = {
    "text_config": TEXT
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}},
    "vision_config": {
        "depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2,
    },
    "image_token_id": 40, "vision_start_token_id": 41, "vision_end_token_id": 42, "video_token_id": 43,
}  # fmt: skip
QWEN3_VL = {
    "text_config": TEXT
    | {
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
    },
    "vision_config": {
        "depth": 2, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "num_heads": 2, "patch_size": 4,
        "spatial_merge_size": 2, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
    },
    "image_token_id": 40, "vision_start_token_id": 41, "vision_end_token_id": 42, "video_token_id": 43,
}  # fmt: skip
LLAVA = {
    "text_config": TEXT | {"model_type": "llama"},
    "vision_config": {
        "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "vision_use_head": False,
    },
    "image_token_index": 40, "vision_feature_select_strategy": "full", "vision_feature_layer": -1,
}  # fmt: skip
PINPOINTS = [[16, 32], [32, 16], [32, 32]]
LLAVA_NEXT = {
    "text_config": TEXT | {"model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 16, "patch_size": 4, "projection_dim": 32,
    },
    "image_token_index": 40, "image_grid_pinpoints": PINPOINTS,
}  # fmt: skip
INTERNVL = {
    "text_config": TEXT | {"model_type": "qwen2"},
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": [16, 16], "patch_size": [4, 4],
    },
    "image_token_id": 40, "image_seq_length": 4,
}  # fmt: skip
IDEFICS3 = {
    "text_config": TEXT | {"model_type": "llama"},
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
        "patch_size": 4,
    },
    "image_token_id": 40, "scale_factor": 2,
}  # fmt: skip
GEMMA3 = {  # whose image tokens see one another; tied, a small one repeats the last token
    "tie_word_embeddings": False,
    "text_config": TEXT
    | {
        "tie_word_embeddings": False, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
        "patch_size": 4, "vision_use_head": False,
    },
    "image_token_id": 40, "boi_token_index": 41, "eoi_token_index": 42, "mm_tokens_per_image": 16,
}  # fmt: skip
FAMILIES = {
    "gemma3": GEMMA3,
    "idefics3": IDEFICS3,
    "qwen2_vl": QWEN2_VL,
    "qwen3_vl": QWEN3_VL,
    "llava": LLAVA,
    "llava_next": LLAVA_NEXT,
    "internvl": INTERNVL,
}
QWEN_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 64, "max_pixels": 1024,
}  # fmt: skip
LLAVA_IMAGES = {
    "image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}, "do_resize": True,
}  # fmt: skip
LLAVA_PROCESSOR = {
    "processor_class": "LlavaProcessor", "patch_size": 4, "vision_feature_select_strategy": "full",
    "image_token": SPECIAL[0], "num_additional_image_tokens": 0,
}  # fmt: skip
LLAVA_NEXT_IMAGES = {
    "image_processor_type": "LlavaNextImageProcessor", "size": {"shortest_edge": 16},
    "crop_size": {"height": 16, "width": 16}, "image_grid_pinpoints": PINPOINTS,
}  # fmt: skip
LLAVA_NEXT_PROCESSOR = {
    "processor_class": "LlavaNextProcessor", "patch_size": 4, "vision_feature_select_strategy": "default",
    "image_token": SPECIAL[0], "num_additional_image_tokens": 1,
}  # fmt: skip
INTERNVL_IMAGES = {
    "image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 16, "width": 16}, "min_patches": 1,
    "max_patches": 4,
}  # fmt: skip
INTERNVL_PROCESSOR = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
NAMED_TOKENS = {  # as the tokenizers of InternVL name them
    "context_image_token": SPECIAL[0], "start_image_token": SPECIAL[1], "end_image_token": SPECIAL[2],
    "video_token": SPECIAL[3],
}  # fmt: skip
IDEFICS3_IMAGES = {
    "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 32},
    "max_image_size": {"longest_edge": 16},
}  # fmt: skip
IDEFICS3_PROCESSOR = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
IDEFICS3_NAMES = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
GEMMA3_IMAGES = {
    "image_processor_type": "Gemma3ImageProcessor", "size": {"height": 16, "width": 16},
}  # fmt: skip
GEMMA3_PROCESSOR = {"processor_class": "Gemma3Processor", "image_seq_length": 16}
GEMMA3_NAMES = ["<image_soft_token>", "<start_of_image>", "<end_of_image>", SPECIAL[3]]
GEMMA3_TEMPLATE = TEMPLATE.replace(
    "<|vision_start|><|image_pad|><|vision_end|>", "\n" + GEMMA3_NAMES[1]
)
PROCESSORS = {
    "gemma3": (GEMMA3_IMAGES, GEMMA3_PROCESSOR),
    "idefics3": (IDEFICS3_IMAGES, IDEFICS3_PROCESSOR),
    "qwen2_vl": (QWEN_IMAGES, None),
    "qwen3_vl": (QWEN_IMAGES, None),
    "llava": (LLAVA_IMAGES, LLAVA_PROCESSOR),
    "llava_next": (LLAVA_NEXT_IMAGES, LLAVA_NEXT_PROCESSOR),
    "internvl": (INTERNVL_IMAGES, INTERNVL_PROCESSOR),
}


def build(family):
    """The model with random weights, large enough that images matter, in float32."""
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

    config = CONFIG_MAPPING[family](**FAMILIES[family])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.4 if "embed" in name else 0.25)
    return model.eval()


def write(folder, family):
    """Everything that serving `family` from `folder` needs. Returns the model."""
    model = build(family)
    model.save_pretrained(folder)
    if family == "gemma3":
        gemma3_tokenizer(folder)
    else:
        tokenizer(folder, IDEFICS3_NAMES if family == "idefics3" else SPECIAL)
    images, whole = PROCESSORS[family]
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    if whole is not None:
        (folder / "processor_config.json").write_text(json.dumps(whole))
    return model


def tokenizer(folder, special):
    """A word for a token, and the special tokens from id 40 on."""
    wrapped = words_and(special, dict(zip(NAMED_TOKENS, special, strict=True)))
    wrapped.chat_template = TEMPLATE.replace(SPECIAL[0], special[0])
    wrapped.save_pretrained(folder)


def gemma3_tokenizer(folder):
    """As Gemma's, it has a token for each number of line breaks, and a processor writes some around an image."""
    from tokenizers import AddedToken

    names = dict(zip(("image_token", "boi_token", "eoi_token"), GEMMA3_NAMES, strict=False))
    wrapped = words_and(GEMMA3_NAMES, names)
    wrapped.add_tokens([AddedToken("\n" * count, normalized=False) for count in range(1, 5)])
    wrapped.chat_template = GEMMA3_TEMPLATE
    wrapped.save_pretrained(folder)


def words_and(special, named):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    plain = WORDS + [f"w{number}" for number in range(40 - len(WORDS))]
    words = {word: number for number, word in enumerate(plain)}
    found = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=found, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=special, extra_special_tokens=named,
    )  # fmt: skip


def picture(seed, height=24, width=40):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def data_url(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def chat(*parts):
    """A user's message: texts, and pictures."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def text_of(tokens, parts):
    """The chat as its template writes it."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
        for part in parts
    ]
    return tokens.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )


def expected(folder, model, parts, count):
    """Token ids of the prompt, and of `count` tokens that `generate` of transformers makes after it, greedily."""
    from transformers import AutoTokenizer
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    tokens = AutoTokenizer.from_pretrained(folder)
    text = text_of(tokens, parts)
    ids = tokens(text, add_special_tokens=False)["input_ids"]
    processor = AutoImageProcessor.from_pretrained(folder)
    made = [
        processor(images=[part], return_tensors="pt") for part in parts if not isinstance(part, str)
    ]
    counts = [
        int(each["image_grid_thw"].prod()) // 4 if "image_grid_thw" in each else 16 for each in made
    ]
    prompt = []
    for token in ids:
        prompt += [token] * (counts.pop(0) if token == 40 else 1)
    given = {name: torch.cat([each[name] for each in made]) for name in (made[0] if made else ())}
    if given and hasattr(model.base_model, "get_rope_index"):
        given["mm_token_type_ids"] = torch.tensor([[int(token == 40) for token in prompt]])
    output = model.generate(
        input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, **given,
    )  # fmt: skip
    return prompt, output[0, len(prompt) :].tolist()


def expected_of_processor(folder, model, parts, count):
    """As `expected`, for families whose processor writes the tokens of images: it receives a whole chat."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    text = text_of(processor.tokenizer, parts)
    pictures = [part for part in parts if not isinstance(part, str)]
    arrays = processor(text=[text], images=pictures, add_special_tokens=False, return_tensors="np")
    made = {name: torch.as_tensor(np.asarray(array)) for name, array in arrays.items()}
    if "token_type_ids" not in inspect.signature(type(model).forward).parameters:
        made.pop("token_type_ids", None)
    output = model.generate(
        **made, max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    prompt = made["input_ids"][0].tolist()
    return prompt, output[0, len(prompt) :].tolist()


def skip_without_torchvision(family):
    """Some image processors have no other way in older versions of transformers."""
    import pytest
    import transformers

    name = {"idefics3": "Idefics3ImageProcessorPil", "gemma3": "Gemma3ImageProcessorPil"}.get(
        family
    )
    if name and getattr(getattr(transformers, name, None), "is_dummy", False):
        pytest.skip(f"the installed transformers wants torchvision for {name}")
