"""A folder that several tests read."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

IMAGES = {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 16, "width": 16}}
NAMES = ["<soft>", "<boi>", "<eoi>"]  # ids 2, 3 and 4


@pytest.fixture
def gemma_folder(tmp_path):
    """Files of an image processor like that of Gemma 3: its processor writes line breaks around an image, and its
    tokenizer has a token for each number of these.
    """
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    named = dict(zip(("image_token", "boi_token", "eoi_token"), NAMES, strict=True))
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", additional_special_tokens=NAMES, extra_special_tokens=named
    )  # fmt: skip
    wrapped.add_tokens([AddedToken("\n" * count, normalized=False) for count in (1, 2, 3)])
    wrapped.save_pretrained(tmp_path)
    files = {
        "processor_config": {"processor_class": "Gemma3Processor", "image_seq_length": 4},
        "preprocessor_config": IMAGES,
        "config": {"model_type": "gemma3", "image_token_id": 2},
    }
    for name, values in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    return str(tmp_path)
