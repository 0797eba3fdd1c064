"""The gated short convolution of LFM2, one token per row: C · convolution(B · x), with B, C and x from one projection.
Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_worker_torch.fuse.mixers.projection import input_projection, output_projection
from tenonry_worker_torch.fuse.mixers.window import window_of
from tenonry_worker_torch.state.layer_cache import CONVOLUTION, StateKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tenonry_worker_torch.fuse.mixers.projection import Projection
    from tenonry_worker_torch.fuse.mixers.window import Window

WINDOW = StateKey(CONVOLUTION, 0)


class ShortConvolution:
    """A path (see `tenonry_worker_torch.state.mixer.DecodePath`) from the parameters of a module."""

    def __init__(self, projection: Projection, window: Window, out: Projection) -> None:
        self.projection = projection
        self.window = window
        self.out = out

    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        """`x` [R, hidden] → [R, hidden]; changes the states of these rows."""
        inward, outward, value = self.projection(x).chunk(3, 1)
        mixed = self.window(inward * value, states[WINDOW])
        return self.out((outward * mixed).to(x.dtype))


def short_convolution(module: Any) -> ShortConvolution | None:
    """Build the path from a module with in_proj, conv and out_proj."""
    window = window_of(module.conv, None)
    projection = input_projection([module.in_proj])
    out = output_projection(module.out_proj)
    if window is None or projection is None or out is None:
        return None
    return ShortConvolution(projection, window, out)
