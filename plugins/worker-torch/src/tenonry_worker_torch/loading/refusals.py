"""Rejects models that would compute wrong answers in a packed batch, by name, before their weights load. Worker
process.

The batch is one flattened row of tokens of many requests, and only attention separates them. A layer that mixes
neighbouring tokens in any other way would mix requests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.loading.deep_layers import deep_layers, has_deepstack
from tenonry_worker_torch.loading.image_mask import asks_for_kinds, sees_spans
from tenonry_worker_torch.state.mixers import has_only_state, mixers_of, state_layer_types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

LAYER_TYPES = frozenset(
    {"full_attention", "sliding_attention", "chunked_attention", "indexed_attention"}
)
# names in transformers 5.17
OLDER_NAMES = {"deepseek_sparse_attention": "indexed_attention"}
MIXER_NAMES = re.compile(
    r"mamba|(?-i:SSM|Ssm)|state_?space|rwkv|rglru|recurrent|gated_?delta|linear_?attention|lightning_?attention|short_?conv|hyena|"
    r"retention|xlstm",
    re.IGNORECASE,
)


class CannotRun(ModelError):
    """A model of a kind that this worker does not run, and another one may."""


def refuse_unsupported(model: PreTrainedModel, architecture: str) -> None:
    """Check a model without weights. Raises CannotRun with the architecture and the offending layer."""
    config = model.config
    refuse_encoder_decoder(config, architecture)
    mixers = tuple(mixers_of(model))
    for reason in _layer_type_reasons(config.get_text_config(), mixers):
        raise CannotRun(f"{architecture} cannot run on worker 'torch': {reason}")
    for reason in _module_reasons(model, mixers):
        raise CannotRun(f"{architecture} cannot run on worker 'torch': {reason}")
    if mixers and has_only_state(config.get_text_config()):
        return
    # Of a wrapper, only the text part is checked. transformers has no public function for it.
    if not text_stack(model)[1]._can_set_attn_implementation():  # noqa: SLF001
        raise CannotRun(
            f"{architecture} cannot run on worker 'torch': its code does not use transformers' attention interface, so "
            "its attention cannot read the block-table KV cache"
        )


def refuse_encoder_decoder(config: Any, architecture: str) -> None:
    """Raise CannotRun for a model whose decoder reads an encoder's output for the prompt."""
    if getattr(config, "is_encoder_decoder", False):
        raise CannotRun(
            f"{architecture} is an encoder-decoder model; worker 'torch' runs causal language models"
        )


def refuse_blind(model: PreTrainedModel, architecture: str) -> None:
    """Raise CannotRun for a model with its towers that cannot encode an image apart from a prompt, or whose text part
    uses an image in other ways than as embeddings of its tokens, additions after the first layers, and tokens that see
    one another.

    The arguments of transformers' code show this: kinds of tokens that are not used for positions are for a mask.
    """
    for reason in _image_reasons(model):
        raise CannotRun(
            f"max_images: {architecture} cannot be shown images by worker 'torch': {reason}; use max_images=0 to "
            "serve it for text"
        )


def _image_reasons(model: PreTrainedModel) -> Iterator[str]:
    if not callable(getattr(model, "get_image_features", None)):
        yield "it has no `get_image_features`"
    if has_deepstack(model) and not deep_layers(model):
        yield "it feeds images to several of its layers, and not as Qwen3-VL does"
    if asks_for_kinds(model) and not sees_spans(model):
        name = type(model.base_model).__name__
        yield (
            f"{name} asks which tokens are of an image, and its masks are others than those in which image tokens see "
            "one another and all else is causal"
        )
    if asks_for_kinds(model) and tuple(mixers_of(model)):
        yield "its image tokens see one another, and it has layers with state, whose snapshots may end in an image"


def _layer_type_reasons(config: Any, mixers: tuple[str, ...]) -> Iterator[str]:
    known = LAYER_TYPES.union(state_layer_types()) if mixers else LAYER_TYPES
    named = {str(kind) for kind in getattr(config, "layer_types", None) or ()}
    unknown = sorted(kind for kind in named if OLDER_NAMES.get(kind, kind) not in known)
    if unknown:
        yield f"layers of type {', '.join(unknown)} have no KV group (it can do {', '.join(sorted(known))})"


def _module_reasons(model: PreTrainedModel, mixers: tuple[str, ...]) -> Iterator[str]:
    from torch import nn

    for name, module in model.named_modules():
        if _belongs_to(name, mixers):
            continue
        kind = type(module).__name__
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            yield f"layer {name} is a convolution ({kind}), which mixes tokens without attention"
        # If mixers are known, names do not matter: a norm of the family is named after them, too.
        if isinstance(module, nn.RNNBase) or (not mixers and MIXER_NAMES.search(kind)):
            yield f"layer {name} is a {kind}, which mixes tokens without attention"


def _belongs_to(name: str, mixers: tuple[str, ...]) -> bool:
    """Return True if a module keeps state by row, is inside such a module, or contains one."""
    return any(
        f"{mixer}.".startswith(f"{name}." if name else "") or name.startswith(f"{mixer}.")
        for mixer in mixers
    )
