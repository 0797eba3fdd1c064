"""Rebuilds this rank's model from existing and new weights, in the way in which it was loaded: renamed, converted, cut.
Worker process.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.weights import (
    check_complete,
    placed_on,
    progress_only_on_a_terminal,
    weights_of,
)
from tenonry_worker_torch.loading.rank_model import RankModel
from tenonry_worker_torch.residency.plain import check_whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.residency.update import WeightUpdate


class RankReload:
    """Makes the part of the model that one rank holds. `names`: of its parameters."""

    def __init__(self, found: CheckpointInfo, parallel: Parallel) -> None:
        self._found = found
        self._rank = RankModel(found.whole, found.whole.config, parallel)
        self.names = frozenset(self._rank.names)

    def check(self, update: WeightUpdate) -> None:
        """Raise ModelError for a tensor without this rank's piece."""
        self._rank.parts(update)

    def make(
        self,
        held: dict[str, torch.Tensor],
        update: WeightUpdate | None,
        dtype: str,
        device: torch.device,
    ) -> PreTrainedModel:
        """Build the model from `held`, the result of `kept`, and an update; empties `held`. Raises ModelError."""
        weights: dict[str, Any] = dict(held)
        path = "memory" if update is None else update.source
        architecture = self._found.architecture
        with (
            progress_only_on_a_terminal(),
            weights_of(architecture, path),
            ExitStack() as open_files,
        ):
            if update is not None:
                weights |= self._rank.stored(update, open_files)
            model, info = self._rank.model_class.from_pretrained(
                None,
                config=self._rank.config,
                state_dict=weights,
                dtype=choose_dtype(dtype, self._found.whole.config, device),
                output_loading_info=True,
                **placed_on(device),
            )
        check_complete(info, path, architecture)
        held.clear()
        made: PreTrainedModel = model.to(device).eval().requires_grad_(False)
        return made

    @property
    def in_ties(self) -> frozenset[str]:
        """Parameters that share a weight, or may."""
        return frozenset(self._rank.tied).union(self._rank.tied.values())

    def kept(self, held: dict[str, torch.Tensor], new: set[str]) -> dict[str, torch.Tensor]:
        """Remaining weights, each once: a name that shares the weight of another follows it. Raises ModelError."""
        followers = {
            name
            for name, source in self._rank.tied.items()
            if name in held and source in held and torch.equal(held[name], held[source])
        }
        stays = self.names - new - followers
        check_whole(held, stays)
        return {name: held[name] for name in sorted(stays)}
