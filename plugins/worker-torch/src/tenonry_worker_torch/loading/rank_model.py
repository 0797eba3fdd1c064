"""Loading only what a rank holds: its stage's layers, and of each layer its piece. Worker process.

transformers does the loading, so that renamed and stacked checkpoint tensors work as ever: it is given a model class
that cuts itself down when it is built, and slices of files that read only the piece.
"""

from __future__ import annotations

import copy
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.dummy import RandomSlice
from tenonry_worker_torch.parallel.shard import FileSlice, Shard
from tenonry_worker_torch.parallel.stage import keep_stage
from tenonry_worker_torch.parallel.tensor import shard_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from tenonry_worker_torch.parallel.groups import Parallel

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
# What a checkpoint's tensors go through on their way into one parameter without losing track of rows and columns.
HARMLESS_STEPS = {"MergeModulelist", "Concatenate"}
SHARDS = "tenonry_shards"


class RankModel:
    """The model class of one rank, and what its parameters are cut from. `whole` is the model without storage."""

    def __init__(
        self,
        whole: PreTrainedModel,
        config: PretrainedConfig,
        parallel: Parallel,
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

    def stored(self, path: str, open_files: ExitStack) -> dict[str, FileSlice]:
        """Checkpoint name → slice of this rank's piece. Raises ModelError when a tensor cannot be cut."""
        from safetensors import safe_open

        renaming = Renaming(self.whole)
        found = {}
        for file in weight_files(Path(path)):
            opened = open_files.enter_context(safe_open(file, framework="pt"))
            for key in opened.keys():  # noqa: SIM118 - not a mapping
                name, parts = renaming.target(key, self.shards)
                source = opened.get_slice(key)
                if name in self.names:
                    found[key] = FileSlice(source, self.shards.get(name), parts)
                for alias in self._aliases(name):
                    found[alias] = FileSlice(source, self.shards.get(alias))
        return found

    def random(self, seed: int) -> dict[str, RandomSlice]:
        """As the architecture initialises them: the same for any number of ranks."""
        found = {}
        parameters = {name for name, _ in self.whole.named_parameters()}
        for source in sorted(parameters - self.tied.keys()):
            names = [source] if source in self.names else self._aliases(source)
            for name in names:
                shard = self.shards.get(name)
                cut = None if shard is None else shard.cut
                found[name] = RandomSlice(self.whole, source, seed, cut)
        return found

    def _aliases(self, source: str) -> list[str]:
        """Parameters of this rank that share the weight of one that another stage has."""
        if source in self.names:
            return []
        return [name for name, other in self.tied.items() if other == source and name in self.names]


def rank_model_class(
    model_class: type[PreTrainedModel], parallel: Parallel
) -> type[PreTrainedModel]:
    """The class of `model_class` whose objects hold one rank's part. It goes by the same name and module."""

    def build(
        self: Any,
        config: PretrainedConfig,
        *arguments: Any,
        **options: Any,
    ) -> None:
        model_class.__init__(self, config, *arguments, **options)
        if parallel.link.num_stages > 1:
            keep_stage(self, parallel.link)
        setattr(
            self, SHARDS, shard_layers(self, parallel.tensor) if parallel.tensor.size > 1 else {}
        )

    body = {"__init__": build, "__module__": model_class.__module__, "__doc__": model_class.__doc__}
    return type(model_class.__name__, (model_class,), body)


class Renaming:
    """What transformers calls a checkpoint's tensor in the model."""

    def __init__(self, model: PreTrainedModel) -> None:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        steps = get_model_conversion_mapping(model)
        self._renamings = [step for step in steps if isinstance(step, WeightRenaming)]
        self._converters = [step for step in steps if isinstance(step, WeightConverter)]
        self._converter_of = {
            pattern: step for step in self._converters for pattern in step.source_patterns
        }
        self._prefix = model.base_model_prefix
        self._names = model.state_dict()

    def target(self, key: str, shards: dict[str, Shard]) -> tuple[str, int | None]:
        """The parameter's name, and in how many parts the tensor `key` is cut if that is not as the shard says."""
        from transformers.core_model_loading import rename_source_key

        name, pattern = rename_source_key(
            key,
            self._renamings,
            self._converters,
            self._prefix,
            self._names,
        )
        if name not in self._names and key in self._names:
            name, pattern = rename_source_key(
                key,
                [],
                [],
                self._prefix,
                self._names,
            )
        if pattern is None or not shards:
            return name, None
        return name, self._parts_of_source(key, self._converter_of[pattern], shards.get(name))

    def _parts_of_source(
        self,
        key: str,
        converter: Any,
        shard: Shard | None,
    ) -> int | None:
        steps = {type(step).__name__ for step in converter.operations}
        is_joined = len(converter.source_patterns) > 1
        sources = len(converter.source_patterns)
        if not steps <= HARMLESS_STEPS or (
            shard is not None and is_joined and shard.parts != sources
        ):
            raise ModelError(
                f"checkpoint tensor {key} is rearranged on loading ({', '.join(sorted(steps))}), so a rank cannot read "
                "its piece alone; use tensor_parallel_size=1"
            )
        return 1 if is_joined else None


def weight_files(folder: Path) -> list[Path]:
    """The files that make up the checkpoint. Raises ModelError when there is no index and no single file."""
    if (folder / INDEX).is_file():
        try:
            index = json.loads((folder / INDEX).read_text("utf-8"))
            names = set(index["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{folder / INDEX} is no index of safetensors files: {error!r}"
            ) from None
        return [folder / name for name in sorted(names)]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise ModelError(
        f"{folder} has neither {INDEX} nor {SINGLE}; ranks read their pieces from those"
    )
