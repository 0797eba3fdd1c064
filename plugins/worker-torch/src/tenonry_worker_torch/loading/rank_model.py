"""Loads a rank's part only: its stage's layers, and its piece of each layer. Worker process.

transformers does the loading, so that renamed and stacked checkpoint tensors work as usual: it receives a model class
that shards itself when it is built, and slices of files that read only the piece.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.dummy import RandomSlice
from tenonry_torch_base.parallel.experts import expert_of, holds, is_spread, spread_experts
from tenonry_torch_base.parallel.shard import SHARDS, FileSlice, Shard
from tenonry_torch_base.parallel.stage import keep_stage
from tenonry_torch_base.parallel.tensor import shard_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from tenonry_torch_base.checkpoint import Checkpoint
    from tenonry_torch_base.parallel.groups import Parallel

# Transformations of a checkpoint's tensors into a parameter that preserve rows and columns.
HARMLESS_STEPS = {"MergeModulelist", "Concatenate"}


class RankModel:
    """Model class of one rank, and the sources of its parameters. `whole` is the model without storage."""

    def __init__(
        self, whole: PreTrainedModel, config: PretrainedConfig, parallel: Parallel
    ) -> None:
        self.whole = whole
        self.config = copy.deepcopy(config)
        # Parameter → the one whose weight it shares.
        self.tied: dict[str, str] = dict(whole.all_tied_weights_keys)
        if parallel.link.num_stages > 1:
            self.config.tie_word_embeddings = (
                False  # the first stage has the embedding, the last one the head
            )
        self.model_class = rank_model_class(type(whole), parallel)
        with torch.device("meta"):
            part = self.model_class(self.config)
        self.shards: dict[str, Shard] = getattr(part, SHARDS)
        self.names = set(part.state_dict())

    def parts(self, checkpoint: Checkpoint) -> dict[str, int | None]:
        """Checkpoint name → number of parts of a tensor that is converted on loading, if not that of its shard.

        Raises ModelError when one cannot be cut.
        """
        if not self.shards:
            return {}
        return {
            key: parts_of_source(key, converter, self.shards.get(checkpoint.targets[key]))
            for key, converter in checkpoint.converters.items()
        }

    def stored(self, checkpoint: Checkpoint, open_files: ExitStack) -> dict[str, FileSlice]:
        """Checkpoint name → slice of this rank's piece. Raises ModelError when a tensor cannot be cut."""
        parts_of = self.parts(checkpoint)
        self._check_untied(checkpoint)
        stored = set(checkpoint.targets.values())
        found = {}
        for key, source in checkpoint.slices(open_files).items():
            name = checkpoint.targets[key]
            shard = self.shards.get(name)
            expert = expert_of(key, shard)
            if expert is not None:
                if holds(shard, expert, len(self.whole.get_parameter(name))):
                    found[key] = FileSlice(source, None)
                continue
            if name in self.names:
                found[key] = FileSlice(source, shard, parts_of.get(key))
            for alias in self._aliases(name, stored):
                found[alias] = FileSlice(source, self.shards.get(alias))
        return found

    def random(self, seed: int) -> dict[str, RandomSlice]:
        """Initialise like the architecture: equal for any number of ranks."""
        found = {}
        parameters = {name for name, _ in self.whole.named_parameters()}
        for source in sorted(parameters - self.tied.keys()):
            names = [source] if source in self.names else self._aliases(source, {source})
            for name in names:
                shard = self.shards.get(name)
                cut = None if shard is None else shard.cut
                found[name] = RandomSlice(self.whole, source, seed, cut)
        return found

    def _aliases(self, name: str, stored: set[str]) -> list[str]:
        """Parameters of this rank that share the weight of `name`, held by another stage, and are not `stored`."""
        if name in self.names:
            return []
        owner = self.tied.get(name, name)
        mates = {owner, *(each for each, source in self.tied.items() if source == owner)}
        return sorted(mates & self.names - stored)

    def _check_untied(self, checkpoint: Checkpoint) -> None:
        """Raises ModelError where some of several weights that share one are stored with other values."""
        untied = sorted(checkpoint.untied & self.tied.keys())
        if untied:
            raise ModelError(
                f"{untied[0]} is stored with other values than {self.tied[untied[0]]}, to which config.json ties it "
                "and others, and a rank cannot read such a model in part; use tensor_parallel_size=1 and "
                "pipeline_parallel_size=1"
            )


def rank_model_class(
    model_class: type[PreTrainedModel], parallel: Parallel
) -> type[PreTrainedModel]:
    """The class of `model_class` whose objects hold one rank's part. It goes by the same name and module."""

    def build(self: Any, config: PretrainedConfig, *arguments: Any, **options: Any) -> None:
        model_class.__init__(self, config, *arguments, **options)
        if parallel.link.num_stages > 1:
            keep_stage(self, parallel.link)
        shards: dict[str, Shard] = {}
        if parallel.experts is not None:
            shards |= spread_experts(self, parallel.experts)
        if parallel.tensor.size > 1:
            shards |= shard_layers(self, parallel.tensor, done=frozenset(shards))
        setattr(self, SHARDS, shards)

    body = {"__init__": build, "__module__": model_class.__module__, "__doc__": model_class.__doc__}
    return type(model_class.__name__, (model_class,), body)


def parts_of_source(key: str, converter: Any, shard: Shard | None) -> int | None:
    """Number of parts of the tensor `key`, if not that of its shard.

    Raises ModelError when its rows and columns are rearranged on loading, so that a rank cannot read its piece alone.
    """
    steps = {type(step).__name__ for step in converter.operations}
    sources = len(converter.source_patterns)
    is_joined = sources > 1
    joins_cut = shard is not None and is_joined and not is_spread(shard)
    if not steps <= HARMLESS_STEPS or (joins_cut and shard.parts != sources):
        raise ModelError(
            f"checkpoint tensor {key} is rearranged on loading ({', '.join(sorted(steps))}), so a rank cannot read "
            "its piece alone; use tensor_parallel_size=1"
        )
    return 1 if is_joined else None
