"""Linear layers of a model that accept adapters, and a rank's part of them. Worker process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.layers import GatherLinear
from tenonry_torch_base.parallel.shard import SHARDS
from tenonry_torch_base.renaming import Renaming
from tenonry_worker_torch.loading.linear_layers import linear_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.shard import Shard

PREFIX_OF_EXPERTS = ".experts."


@dataclass(frozen=True, slots=True)
class Place:
    """A linear layer by its name in the model; sizes of the whole layer, with the `shard` of its weight."""

    name: str
    in_features: int
    out_features: int
    shard: Shard | None = None

    def cut(self, down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of `down` [rank, in] and `up` [out, rank]: inputs or outputs are cut like the
        weight's.
        """
        if self.shard is None:
            return down, up
        if self.shard.dim == -1:
            return self.shard.cut(down), up
        return down, self.shard.cut(up)


class LoraTargets:
    """Adapter targets of one model. `calls` of a run over prompts show which layers see each token once, in order."""

    def __init__(self, whole: PreTrainedModel, part: PreTrainedModel) -> None:
        """`whole`: the model, maybe without storage; `part`: this rank's part of it."""
        self.architecture = type(whole).__name__
        self._renaming = Renaming(whole)
        self._refused: dict[str, str] = {}
        shards = getattr(part, SHARDS, {})
        for name, module in whole.named_modules():
            if module in (whole.get_output_embeddings(), whole.get_input_embeddings()):
                self._refused[name] = "adapters of the vocabulary are not supported"
        self.by_name: dict[str, Place] = {}
        for name, linear in linear_layers(whole).items():
            shard = shards.get(f"{name}.weight")
            if isinstance(part.get_submodule(name), GatherLinear):
                shard = None  # its outputs are all here
            self.by_name[name] = Place(name, linear.in_features, linear.out_features, shard)

    def refuse(self, name: str, reason: str) -> None:
        """Exclude a layer from adapters, with a reason."""
        if self.by_name.pop(name, None) is not None:
            self._refused[name] = reason

    def find(self, module: str, tensor: str) -> Place:
        """The place that an adapter means by `module`. Raises ModelError that names its `tensor`."""
        name = module
        if name not in self.by_name and name not in self._refused:
            renamed, _ = self._renaming.target(f"{module}.weight")
            name = renamed.removesuffix(".weight")
        if name in self.by_name:
            return self.by_name[name]
        reason = self._refused.get(name)
        if reason is None:
            reason = f"{self.architecture} has no linear layer {module}"
        raise ModelError(f"tensor {tensor} would not be used: {reason}")


class Calls:
    """Token counts of each linear layer, call by call; −1 for inputs that are no rows of tokens."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}

    def check(self, targets: LoraTargets, lengths: Sequence[int]) -> None:
        """Remove layers from `targets` that did not process every token of prompts of these lengths exactly once."""
        wanted = list(lengths)
        for name in list(targets.by_name):
            if PREFIX_OF_EXPERTS in name:
                targets.refuse(name, f"{name} computes the tokens of one expert only")
            elif self.counts.get(name) != wanted:
                targets.refuse(name, f"{name} is not called once for all tokens of a step")


@contextmanager
def calls_of(model: nn.Module | None) -> Iterator[Calls]:
    """Record calls of `model`'s linear layers, if any, while its own code runs over several prompts."""
    found = Calls()
    handles = []
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, nn.Linear):
            watch = _Watch(found.counts.setdefault(name, []))
            handles.append(module.register_forward_pre_hook(watch))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


class _Watch:
    """A hook before a layer's forward pass."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __call__(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        shape = inputs[0].shape if inputs else ()
        is_rows = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
        self.counts.append(shape[-2] if is_rows else -1)
