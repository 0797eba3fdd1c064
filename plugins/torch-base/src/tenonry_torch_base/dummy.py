"""Random weights (`load_format=dummy`): each parameter from its own name and the seed, so that every cut of a model has
the same ones. Worker process.
"""

from __future__ import annotations

import copy
import threading
import zlib
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.seeded import seeded

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

_ONE_AT_A_TIME = threading.Lock()  # transformers loads in threads, and torch has one random state


class RandomSlice:
    """One parameter of `whole`, a model without storage, generated when it is indexed with `...`.

    `cut` extracts a rank's piece.
    """

    def __init__(
        self,
        whole: PreTrainedModel,
        name: str,
        seed: int,
        cut: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.whole = whole
        self.name = name
        self.seed = seed
        self.cut = cut

    def __getitem__(self, _everything: Any) -> torch.Tensor:
        made = self._make()
        return made if self.cut is None else self.cut(made)

    @torch.no_grad()
    def _make(self) -> torch.Tensor:
        """Initialise it like its module in the architecture; the caller's random state does not change."""
        owner, _, part = self.name.rpartition(".")
        with _ONE_AT_A_TIME, seeded(zlib.crc32(self.name.encode()) ^ self.seed):
            module = copy.deepcopy(self.whole.get_submodule(owner))
            module.to_empty(device="cpu", recurse=False)
            # Parameters without initialisation by the architecture.
            for weight in module.parameters(recurse=False):
                weight.normal_(0.0, 0.02)
            self.whole._init_weights(module)  # noqa: SLF001 - transformers has no public name for it
            return getattr(module, part).detach()
