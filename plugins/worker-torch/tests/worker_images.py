"""Small random models that see, pictures for them, and prompts with places for the pictures."""

from __future__ import annotations

import inspect
import json

import numpy as np
import torch
import worker_wrappers
from PIL import Image

from tenonry.step import Media
from tenonry_worker_torch.images.check import ImageCheck

PLACE = 90  # placeholder token of a part of an image
PROCESSORS = {
    "qwen2_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        "min_pixels": 28 * 28, "max_pixels": 84 * 84,
    },
    "qwen2_5_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        "min_pixels": 28 * 28, "max_pixels": 84 * 84,
    },
    "llava": {
        "image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28},
        "crop_size": {"height": 28, "width": 28},
    },
    "mistral3": {
        "image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 56}, "patch_size": 28,
    },
    "gemma3": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 28, "width": 28}},
    "qwen3_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2,
        "min_pixels": 28 * 28, "max_pixels": 84 * 84,
    },
}  # fmt: skip


def write_folder(folder, family):
    """Write the worker's input files besides weights."""
    kind = family.removesuffix("_siglip").removesuffix("_moe")
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[kind]))
    return ImageCheck(str(folder))


def picture(seed, height=40, width=60):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def processed(folder, pictures):
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder)
    return [
        {key: np.asarray(value) for key, value in processor(images=[each], return_tensors="np").items()}
        for each in pictures
    ]  # fmt: skip


def count_of(model, inputs):
    """Tokens of each image, as its own code counts them."""
    from tenonry_worker_torch.images.encoder import ImageEncoder

    with torch.inference_mode():
        return [len(ImageEncoder(model).encode(each)) for each in inputs]


def prompt_of(parts, counts, between=None):
    """`parts`: lists of token ids, and None for the next image; with `between`, that token follows each two of an
    image.

    Returns token ids, and the spans of images, i64[N, 2].
    """
    ids, spans = [], []
    left = list(counts)
    for part in parts:
        if part is None:
            image = [PLACE] * left.pop(0)
            if between is not None:
                for place in range(len(image) - len(image) % 2 - 2, 0, -2):
                    image.insert(place, between)
            spans.append((len(ids), len(image)))
            ids += image
        else:
            ids += part
    return ids, np.array(spans, np.int64)


def media_of(spans, inputs, whole=None):
    import hashlib

    digests = [hashlib.sha256(each["pixel_values"].tobytes()).digest() for each in inputs]
    return Media(
        spans,
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32),
        list(inputs),
        np.array([] if whole is None else whole, np.int64).reshape(-1, 2),
    )


def generated(model, ids, spans, inputs, count):
    """Answer of transformers' `generate` to the prompt and its images."""
    given = {
        name: torch.from_numpy(np.concatenate([each[name] for each in inputs]))
        for name in inputs[0]
        if name != "num_crops"
    }
    kinds = torch.zeros(1, len(ids), dtype=torch.int32)
    for begin, length in spans.tolist():
        kinds[0, begin : begin + length] = 1
    if hasattr(model.base_model, "get_rope_index"):
        given["mm_token_type_ids"] = kinds
    if "token_type_ids" in inspect.signature(type(model).forward).parameters:
        given["token_type_ids"] = torch.tensor([[int(token == PLACE) for token in ids]])
    made = model.generate(
        input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0, **given,
    )  # fmt: skip
    return made[0, len(ids) :].tolist()


def build(family):
    """Gemma 3 scales its embeddings: tied, a small one repeats the last token."""
    return worker_wrappers.build(family, is_tied=False if family == "gemma3" else None)
