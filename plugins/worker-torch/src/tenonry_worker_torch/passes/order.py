"""The worker's own passes, and their order. Worker process.

`MixerPaths` come before `Fusion`, whose comparison of the whole model covers them. Both, and `Invariance`, read the
modules as loaded; all others may change what the model's own code computes. Passes of other packages follow: they see
fused layers with plain weights. `AdapterSeats` wrap layers before their weights are laid out. `Quantise` comes before
`Pack`, which lays out what is left as floats. `ChosenKernels` come last, since they read packed weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.conflicts import Conflicts
from tenonry_worker_torch_cpu.passes.experts import DenseExperts
from tenonry_worker_torch.passes.fusion import Fusion, MixerPaths
from tenonry_worker_torch_cpu.passes.invariance import Invariance
from tenonry_worker_torch_cpu.passes.kernels import ChosenKernels
from tenonry_worker_torch.passes.weights import AdapterSeats, Pack, Quantise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.info import PluginRecord
    from tenonry_worker_torch.passes.model_pass import ModelPass

    Kind = tuple[type[ModelPass], PluginRecord | None]

STRUCTURE = (MixerPaths, Fusion, Invariance, DenseExperts)
INSTALLED_CONFLICTS = Conflicts(
    "model_passes",
    {
        "pipeline_parallel_size": "results are compared over all stages, which might not all use a pass; use "
        "--tensor-parallel-size instead",
        "enforce_eager": "no pass is applied then; leave one of them out",
        "fuse": "no pass is applied then; leave one of them out",
    },
)  # of passes of other packages
WEIGHTS = (AdapterSeats, Quantise, Pack, ChosenKernels)


def in_order(installed: Sequence[Kind] = ()) -> list[Kind]:
    """The worker's own passes, with those of other packages between structure and weights."""
    first: list[Kind] = [(each, None) for each in STRUCTURE]
    return [*first, *installed, *((each, None) for each in WEIGHTS)]
