"""The part of a model's stack that one rank runs: the other layers are removed before any weight is read.

The model keeps its own forward pass. A layer that another stage runs is replaced by an identity module, and the last of
those before this stage returns the hidden states received from the previous stage, for any input. Worker process.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tenonry.errors import ModelError
from tenonry_torch_base.cache_argument import cache_argument_of
from tenonry_torch_base.parallel.plan import pipeline_plan
from tenonry_torch_base.text_part import text_stack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Link
    from tenonry_torch_base.step_cache import StepCache

STAGE_ATTRIBUTE = "tenonry_stage"
# Arguments of every layer that every stage can make itself.
EVERY_STAGE_HAS = frozenset(
    {"position_embeddings", "position_ids", "attention_mask", "cache_position"}
)


def stage_layers(count: int, stage: int, num_stages: int) -> range:
    """Layers of one stage: adjacent, as even as possible; the first stages have the remainder, since the last one also
    has the head.
    """
    each, more = divmod(count, num_stages)
    begin = stage * each + min(stage, more)
    return range(begin, begin + each + (stage < more))


class Skipped(nn.Module):
    """Placeholder for a layer of another stage: keeps its plain attributes, which models read, and does nothing."""

    def __init__(self, layer: nn.Module, family: str) -> None:
        super().__init__()
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, str | int | float | None):
                setattr(self, name, value)
        self.family = family
        self.is_checked = False

    def forward(self, hidden_states: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        if not self.is_checked:
            self._check(others, named)
            self.is_checked = True
        return hidden_states

    def _check(self, others: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Raise ModelError when layers receive something that only the first stage can make."""
        odd = [
            name
            for name, value in named.items()
            if name not in EVERY_STAGE_HAS and _holds_tensor(value)
        ]
        odd += [
            f"argument {place + 2}" for place, value in enumerate(others) if _holds_tensor(value)
        ]
        if odd:
            raise ModelError(
                f"{self.family} passes {', '.join(odd)} to its layers besides hidden states, which stages of worker "
                "'torch' do not pass on; use pipeline_parallel_size=1"
            )


class Entry(Skipped):
    """The last layer before a stage: returns the hidden states received from the previous stage."""

    received: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        super().forward(hidden_states, *others, **named)
        return hidden_states if self.received is None else self.received


class Stage:
    """Forward pass of this rank's part of the model. `layers` are the numbers of its layers; None for all of them.
    `cache`: passed together with positions to a model that needs more of its cache than keys and values.
    """

    def __init__(
        self, link: Link | None = None, layers: range | None = None, entry: Entry | None = None
    ) -> None:
        self.is_first = link is None or link.is_first
        self.is_last = link is None or link.is_last
        self.layers = layers
        self.entry = entry
        self.cache: StepCache | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        inputs: torch.Tensor,
        positions: torch.Tensor | None,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`inputs`: token ids i64[T], or their embeddings [T, H], in the first stage, hidden states [T, H] in the
        others; `positions` i64[T] or i64[3, T], or None for the model's default of a single sequence. Returns logits
        [kept, vocabulary] in the last stage (`keep` None: of every token), hidden states [T, H] in the others.
        """
        fed: dict[str, Any] = {}
        if positions is not None:
            fed["position_ids"] = positions.unsqueeze(-2)
            if self.cache is not None:
                self.cache.positions = positions
                fed[cache_argument_of(type(model))] = self.cache
        if self.entry is None:
            fed["inputs_embeds" if inputs.is_floating_point() else "input_ids"] = inputs[None]
        else:
            self.entry.received = fed["inputs_embeds"] = inputs[None]
        if not self.is_last:
            return model.base_model(**fed, use_cache=False).last_hidden_state[0]
        if keep is None:
            return model(**fed, use_cache=False).logits[0]
        if not keeps_logits(type(model)):
            return model(**fed, use_cache=False).logits[0].index_select(0, keep)
        return model(**fed, use_cache=False, logits_to_keep=keep).logits[0]

    def own(self, all_layers: Any) -> list[Any]:
        """Select this stage's part of a per-layer list."""
        return (
            list(all_layers)
            if self.layers is None
            else [all_layers[number] for number in self.layers]
        )


@functools.cache
def keeps_logits(model_class: type[nn.Module]) -> bool:
    """Return True if its forward pass can compute the logits of some positions only."""
    return "logits_to_keep" in inspect.signature(model_class.forward).parameters


def stage_of(model: nn.Module) -> Stage:
    """Return the stage made by `keep_stage`; the whole model if it was never called."""
    found: Stage | None = getattr(model, STAGE_ATTRIBUTE, None)
    if found is None:
        found = Stage()
        setattr(model, STAGE_ATTRIBUTE, found)
    return found


def keep_stage(model: PreTrainedModel, link: Link) -> None:
    """Reduce `model` to this rank's stage. Raises ModelError: a family without a plan, or too few layers."""
    before, name, after = pipeline_plan(model, link.num_stages)
    _, base = text_stack(model)
    family = type(model).__name__
    layers: nn.ModuleList = getattr(base, name)
    if len(layers) < link.num_stages:
        raise ModelError(
            f"{family} has {len(layers)} layers, but pipeline_parallel_size={link.num_stages}; each stage needs a layer"
        )
    _refuse_unplanned(base, {*before, name, *after}, family)
    own_layers = stage_layers(len(layers), link.stage, link.num_stages)
    for number, layer in enumerate(layers):
        if number in own_layers:
            continue
        replacement = Entry if number == own_layers.start - 1 else Skipped
        layers[number] = replacement(layer, family)
    gone: list[str] = []
    if not link.is_first:
        gone += before
    if not link.is_last:
        gone += after
    for child in gone:
        setattr(base, child, nn.Identity())
    if not link.is_last:
        model.set_output_embeddings(nn.Identity())
    entry = None if link.is_first else layers[own_layers.start - 1]
    setattr(model, STAGE_ATTRIBUTE, Stage(link, own_layers, entry))


def _refuse_unplanned(base: nn.Module, planned: set[str], family: str) -> None:
    """Reject modules with weights that the plan does not place: they would silently be missing."""
    for child, module in base.named_children():
        if child not in planned and any(True for _ in module.parameters()):
            raise ModelError(
                f"the pipeline plan of {family} does not say which stage has '{child}'; use pipeline_parallel_size=1"
            )


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)
