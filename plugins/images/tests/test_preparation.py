"""Image files made ready: what is refused before a pixel is decoded, and how many tokens stand for an image."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import is_torchvision_available

from tenonry_images.messages import unpacked
from tenonry_images.preparation import CannotPrepare, Preparation

QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 64, "max_pixels": 4096,
}  # fmt: skip
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}}
LLAVA = {"processor_class": "LlavaProcessor", "patch_size": 4, "vision_feature_select_strategy": "full",
         "image_token": "<image>"}  # fmt: skip


def file_of(picture, kind="PNG", **options):
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(height=24, width=40):
    values = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def folder_of(tmp_path, images, **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    return str(tmp_path)


def test_patches_are_counted_where_the_processor_does(tmp_path):
    path = folder_of(tmp_path, QWEN, model_type="qwen2_vl", image_token_id=7)
    made = Preparation(path).make(file_of(picture()), 10_000)
    grid = unpacked(made.inputs["image_grid_thw"])
    assert grid.tolist() == [[1, 6, 10]]
    assert made.token_ids == [7] * 15
    assert (made.first, made.count) == (0, 15)
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    wanted = AutoImageProcessor.from_pretrained(path)(images=[picture()], return_tensors="np")
    assert np.array_equal(unpacked(made.inputs["pixel_values"]), wanted["pixel_values"])


def test_elsewhere_the_models_processor_writes_the_tokens(tmp_path):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "<image>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", additional_special_tokens=["<image>"]
    )
    wrapped.save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(LLAVA))
    path = folder_of(tmp_path, SIGLIP, model_type="llava", image_token_index=2)
    made = Preparation(path).make(file_of(picture(), "JPEG"), 10_000)
    assert made.token_ids == [2] * 16
    assert made.inputs["pixel_values"][1] == [1, 3, 16, 16]


def wants_torchvision(name):
    """Return True if the installed transformers requires torchvision, which is not installed, for the class."""
    return (
        getattr(getattr(transformers, name), "is_dummy", False) and not is_torchvision_available()
    )


@pytest.mark.skipif(is_torchvision_available(), reason="torchvision is installed")
def test_a_processor_that_needs_torchvision_is_refused_with_the_remedy(tmp_path):
    images = {"image_processor_type": "Sam2ImageProcessor"}
    path = folder_of(tmp_path, images, model_type="sam2", image_token_id=7)
    with pytest.raises(CannotPrepare, match=r"cannot be built: .*; pip install torchvision$"):
        Preparation(path)


IDEFICS = {
    "image_processor_type": "Idefics3ImageProcessor", "size": {"longest_edge": 64},
    "max_image_size": {"longest_edge": 32},
}  # fmt: skip
IDEFICS_PROCESSOR = {"processor_class": "Idefics3Processor", "image_seq_len": 4}


def test_an_image_of_several_tiles_has_all_tokens_from_its_first_to_its_last(tmp_path):
    names = ["<image>", "<fake_token_around_image>", "<end_of_utterance>"]
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", additional_special_tokens=names
    )
    wrapped.save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(IDEFICS_PROCESSOR))
    path = folder_of(tmp_path, IDEFICS, model_type="idefics3", image_token_id=2)
    if wants_torchvision("Idefics3ImageProcessorPil"):
        with pytest.raises(CannotPrepare, match="pip install torchvision"):
            Preparation(path)
        return
    made = Preparation(path).make(file_of(picture(), "PNG"), 10_000)
    places = [place for place, token in enumerate(made.token_ids) if token == 2]
    assert (made.first, made.first + made.count - 1) == (places[0], places[-1])
    assert len(places) < made.count
    assert len(places) == 4 * made.inputs["pixel_values"][1][1]


def test_a_processor_that_writes_another_token_is_refused_at_the_start(tmp_path):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "<image>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", additional_special_tokens=["<image>"]
    ).save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(LLAVA))
    path = folder_of(tmp_path, SIGLIP, model_type="llava", image_token_index=7)
    with pytest.raises(CannotPrepare, match=r"LlavaProcessor in .* writes no token 7"):
        Preparation(path)


def test_a_processor_that_takes_no_picture_is_refused_at_the_start(tmp_path):
    words = Tokenizer(models.WordLevel({"<unk>": 0, "<image>": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(tmp_path)
    (tmp_path / "processor_config.json").write_text(json.dumps(LLAVA | {"patch_size": None}))
    path = folder_of(tmp_path, SIGLIP, model_type="llava", image_token_index=1)
    with pytest.raises(CannotPrepare, match=r"LlavaProcessor in .* does not take a picture"):
        Preparation(path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "qwen2_vl"}, "names no image_token_id"),
        ({"model_type": "llama", "image_token_id": 3}, "cannot be built"),
    ],
)
def test_a_model_that_is_shown_no_images_is_refused(tmp_path, config, reason):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CannotPrepare, match=reason):
        Preparation(str(tmp_path))


def test_texts_around_an_image_stay_apart_and_its_tokens_together(gemma_folder):
    """The processor of Gemma 3 writes line breaks, which are other tokens beside other line breaks."""
    if wants_torchvision("Gemma3ImageProcessorPil"):
        with pytest.raises(CannotPrepare, match="pip install torchvision"):
            Preparation(gemma_folder)
        return
    preparation = Preparation(gemma_folder)
    made = preparation.make(file_of(picture(), "PNG"), 10_000)
    assert preparation.token_id == 3
    assert made.token_ids == [3, 2, 2, 2, 2, 4]
    assert (made.before, made.after) == ("\n\n", "\n\n")
    assert (made.first, made.count, made.whole) == (1, 4, [(1, 4)])
