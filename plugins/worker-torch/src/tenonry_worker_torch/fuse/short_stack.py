"""A model with few of its decoder layers: the first, the last and one of each kind, for comparisons that would repeat
themselves from layer to layer. Worker process.

Layers of one kind have the same classes, shapes, settings and attention, so an error in calling one is an error in all
of them; the last one is included because it may continue with few tokens. A comparison at full depth covers each
layer's own weights, and its own cache if layers share a plan.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.parallel.stage import Skipped
from tenonry_torch_base.text_part import text_stack
from tenonry_worker_torch.fuse.stack import blocks_of, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.layer import AttentionLayer

logger = logging.getLogger("tenonry.worker")

LLAMA_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}


class Passed(Skipped):
    """Replaces an omitted layer, and returns its input in the form of the remaining layers' output."""

    def __init__(self, layer: nn.Module, family: str, gives_tuples: list[bool]) -> None:
        super().__init__(layer, family)
        self.gives_tuples = gives_tuples

    def forward(self, hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
        return (hidden_states,) if self.gives_tuples[-1] else hidden_states


class ShortStack:
    """The numbers of the layers that stay, and the model with no others."""

    def __init__(self, model: PreTrainedModel, numbers: list[int]) -> None:
        self.model = model
        self.numbers = numbers

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Replace the other layers by identities in the block; afterwards everything is restored."""
        layers: nn.ModuleList = text_stack(self.model)[1].layers
        family = type(self.model).__name__
        gives_tuples: list[bool] = []  # of the layers that have run
        whole = list(layers)
        hook = whole[0].register_forward_hook(
            lambda _layer, _given, made: gives_tuples.append(isinstance(made, tuple))
        )
        try:
            for number in set(range(len(whole))) - set(self.numbers):
                layers[number] = Passed(whole[number], family, gives_tuples)
            yield
        finally:
            hook.remove()
            for number, layer in enumerate(whole):
                layers[number] = layer

    def hidden(self, prompt: torch.Tensor) -> torch.Tensor:
        """The last hidden states [length, hidden] that the short model's own code makes of a prompt."""
        hook = text_stack(self.model)[1].register_forward_hook(_end)
        try:
            with torch.inference_mode():
                self.model(input_ids=prompt[None], use_cache=False)
        except _Reached as reached:
            return reached.hidden[0]
        finally:
            hook.remove()
        raise RuntimeError(f"{type(self.model).__name__} does not run its text model")


class _Reached(Exception):
    """Ends a run where the text model ends, before the head."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


def _end(_stack: nn.Module, _given: Any, made: Any) -> None:
    raise _Reached(made[0])


def short_stack(model: PreTrainedModel, layers: Iterable[AttentionLayer]) -> ShortStack | None:
    """Return the short stack of a model; None unless it has the structure of Llama."""
    names = {name for name, _ in text_stack(model)[1].named_children()}
    blocks = blocks_of(model, layers) if names == LLAMA_PARTS else None
    if not blocks:
        return None
    first_of_kind: dict[object, int] = {}
    for number, block in enumerate(blocks):
        first_of_kind.setdefault(kind_of(block), number)
    return ShortStack(model, sorted({len(blocks) - 1, *first_of_kind.values()}))
