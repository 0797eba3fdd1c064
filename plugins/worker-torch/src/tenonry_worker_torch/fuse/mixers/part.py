"""A layer with state instead of attention in a fused layer. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.mixers.build import set_path
from tenonry_worker_torch.state.mixer import PackedMixer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from tenonry_worker_torch.fuse.linear import Packing


class Made:
    """The output projection of a part that has made its outputs already."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return x + other


class FusedMixer:
    """Called like `FusedAttention`. `over_step`: the tokens [T, hidden] of a step → [T, hidden]; `name`: of the
    replaced child.
    """

    def __init__(
        self, name: str, over_step: Callable[[torch.Tensor], torch.Tensor], mixer: PackedMixer
    ) -> None:
        self.name = name
        self.over_step = over_step
        self.mixer = mixer
        self.out = Made()

    def heads(
        self,
        x: torch.Tensor,
        _cos: torch.Tensor | None,
        _sin: torch.Tensor | None,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        """`x` [T, hidden] → [Q, hidden], with the output projection; `keep` i64[Q] selects the continuing tokens."""
        made = self.over_step(x)
        return made if keep is None else made.index_select(0, keep)

    def pack(self, packing: Packing) -> None:
        """Lay the module's weights out anew; its path reads them from there."""
        if pack_linears(self.mixer.module, packing) and self.mixer.path is not None:
            set_path(self.mixer)


def mixer_part(block: nn.Module) -> FusedMixer | None:
    """Return the mixer of a decoder layer with exactly one stateful child; None otherwise."""
    found = [
        FusedMixer(name, forward.over_step, forward)
        for name, child in block.named_children()
        if isinstance(forward := vars(child).get("forward"), PackedMixer)
    ]
    return found[0] if len(found) == 1 else None
