"""Visibility between image tokens is read off the masks of the model's own code, before weights are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import worker_images
import worker_wrappers

from tenonry.step import Media
from tenonry_worker_torch.images.request import RequestImages
from tenonry_worker_torch.loading.image_mask import asks_for_kinds, sees_spans


@pytest.fixture(scope="module")
def gemma3():
    return worker_images.build("gemma3")


def test_gemma_3_lets_the_tokens_of_an_image_see_one_another(gemma3):
    assert asks_for_kinds(gemma3)
    assert sees_spans(gemma3)


@pytest.mark.parametrize(
    ("family", "asks"), [("gemma4", True), ("llava", False), ("qwen2_vl", False)]
)
def test_others_do_not_or_by_another_rule(family, asks):
    from transformers import AutoModelForImageTextToText

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(worker_wrappers.config_of(family))
    assert asks_for_kinds(model) is asks
    assert not sees_spans(model)


def test_a_prompt_that_sees_all_of_itself_is_another_rule():
    from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

    config = PaliGemmaConfig(
        text_config=worker_wrappers.TEXT | {"model_type": "gemma"},
        vision_config=worker_wrappers.SIGLIP,
    )
    with torch.device("meta"):
        model = PaliGemmaForConditionalGeneration(config)
    assert asks_for_kinds(model)
    assert not sees_spans(model)


def spoilt(change):
    """Gemma 3, with other masks."""
    from transformers import Gemma3ForConditionalGeneration

    class Other(Gemma3ForConditionalGeneration):
        @staticmethod
        def create_masks_for_generate(
            config, inputs_embeds, attention_mask, past_key_values, position_ids, token_type_ids=None, **options
        ):  # fmt: skip
            made = Gemma3ForConditionalGeneration.create_masks_for_generate(
                config=config, inputs_embeds=inputs_embeds, attention_mask=attention_mask,
                past_key_values=past_key_values, position_ids=position_ids, token_type_ids=token_type_ids, **options,
            )  # fmt: skip
            return change(made)

    return Other


def unmask(made, kind, query, key):
    made[kind] = made[kind].clone()
    made[kind][0, 0, query, key] = 0.0
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda made: unmask(made, "full_attention", 2, 6),  # an earlier image sees a later one
        lambda made: unmask(made, "sliding_attention", 0, 1),  # text sees what follows
        lambda made: {"full_attention": made["full_attention"]},
        lambda made: made["full_attention"],
        lambda made: made["no such mask"],
    ],
)
def test_masks_of_another_rule_are_seen(gemma3, change):
    with torch.device("meta"):
        assert not sees_spans(spoilt(change)(gemma3.config))


def test_runs_are_the_neighbours_within_one_image():
    media = Media(
        np.array([[2, 5], [9, 2], [11, 2]]),
        np.zeros((3, 32), np.uint8),
        [{}, {}, {}],
        np.array([[2, 2], [5, 2], [9, 4]]),
    )
    images = RequestImages(media)
    images.find_places(np.array([0, 0, 9, 9, 1, 9, 9, 0, 0, 9, 9, 9, 9, 0]), 9)
    assert images.runs(0, 14) == [(2, 4), (5, 7), (9, 11), (11, 13)]
    assert images.runs(4, 5) == []
    assert images.runs(3, 6) == [(2, 4), (5, 7)]
    images.require_whole()
    images.whole.pop()
    with pytest.raises(ValueError, match="9 to 11"):
        images.require_whole()
