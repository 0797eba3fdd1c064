"""Visibility between tokens of an image, from the masks of the model's own code. Worker process.

In most families they see what came before them, as all tokens do. In others they also see the later ones of their image
(Gemma 3, arXiv:2503.19786). Such a model has an input for the kinds of tokens.
"""

from __future__ import annotations

import copy
import inspect
import logging
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.cache_argument import cache_argument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.base import LayerSpec

logger = logging.getLogger("tenonry.worker")

KINDS = "token_type_ids"  # 1 for tokens of images
# Two images, with text before, between and after them.
EXAMPLE = (0, 0, 1, 1, 1, 0, 1, 1, 0, 0)


def asks_for_kinds(model: PreTrainedModel) -> bool:
    """Return True if the model has an input for token kinds that is not for positions."""
    accepted = inspect.signature(type(model).forward).parameters
    has_positions = hasattr(model.base_model, "get_rope_index")
    return KINDS in accepted or ("mm_token_type_ids" in accepted and not has_positions)


def sees_spans(model: PreTrainedModel) -> bool:
    """Return True if tokens attend to earlier ones within the window of their layer, those of an image also to later
    ones of the image, and to no others. False if its code does not make such masks.
    """
    masks = _own_masks(model)
    return bool(masks) and all(
        torch.equal(mask[0, 0] == 0, _wanted(window)) for mask, window in masks
    )


def _own_masks(model: PreTrainedModel) -> list[tuple[torch.Tensor, int]]:
    """Return the additive masks [1, 1, T, T] of the example, each with the window of its layers; empty without any."""
    make: Any = getattr(type(model), "create_masks_for_generate", None)
    if make is None or KINDS not in inspect.signature(make).parameters:
        return []
    config = copy.deepcopy(model.config)
    config._attn_implementation = "eager"  # noqa: SLF001 - whose masks are tensors
    text: Any = config.get_text_config()
    length = len(EXAMPLE)
    try:
        made = make(
            config=config,
            inputs_embeds=torch.zeros(1, length, 1, device="cpu"),
            attention_mask=None,
            position_ids=torch.arange(length, device="cpu")[None],
            token_type_ids=torch.tensor([EXAMPLE], device="cpu"),
            is_first_iteration=True,
            **{cache_argument(make): None},
        )
    except Exception:
        logger.debug("the masks of %s cannot be read", type(model).__name__, exc_info=True)
        return []
    windows = {"full_attention": 0, "sliding_attention": int(getattr(text, "sliding_window", 0))}
    kinds = set(getattr(text, "layer_types", None) or ())
    if not isinstance(made, dict) or not kinds or kinds - made.keys() or kinds - windows.keys():
        return []
    return [(made[kind], windows[kind]) for kind in sorted(kinds)]


def _wanted(window: int) -> torch.Tensor:
    """bool[T, T]: keys attended to by each query of the example."""
    is_image = torch.tensor(EXAMPLE, device="cpu") == 1
    places = torch.arange(len(EXAMPLE), device="cpu")
    number = torch.cumsum(~is_image, 0)  # equal within an image
    is_same = is_image & is_image[:, None] & (number == number[:, None])
    sees = (places <= places[:, None]) | is_same
    if window:
        sees &= places > places[:, None] - window
    return sees


def mark_spans(model: PreTrainedModel, layers: Iterable[LayerSpec]) -> None:
    """Mark the layers of a model with image input for their backend."""
    has_spans = sees_spans(model)
    for layer in layers:
        layer.spans = has_spans
