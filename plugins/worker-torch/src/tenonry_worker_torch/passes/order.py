"""Order of all passes: the worker's own, those of the distribution for the device, and named ones. Worker process.

`mixers` come before `fusion`, whose comparison of the whole model covers them. Both, and `invariance`, read the modules
as loaded; all others may change what the model's own code computes. Named passes of other packages follow: they receive
fused layers with plain weights. Kernels of adapters and of quantised matrices are chosen before the layers that use
them are made. `adapters` wrap layers before their weights are laid out. `quantisation` comes before `packing`, which
changes the layout of the remaining floats. `kernels` come late, since they read packed weights, and `graphs` last,
since they record all of it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_torch_base.conflicts import Conflicts
from tenonry_torch_base.points import resolve_class
from tenonry_worker_torch.passes.fusion import Fusion, MixerPaths
from tenonry_worker_torch.passes.weights import AdapterSeats, Quantise
from tenonry_worker_torch.points import DEVICE_PASSES, MODEL_PASSES, missing_passes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenonry.info import PluginRecord
    from tenonry_worker_torch.passes.model_pass import ModelPass

    Kind = tuple[type[ModelPass], PluginRecord | None]

logger = logging.getLogger("tenonry.worker")

OWN: tuple[type[ModelPass], ...] = (MixerPaths, Fusion, AdapterSeats, Quantise)
NAMED = ""  # the place of all passes that are not listed
ORDER = (
    "mixers",
    "fusion",
    "adapter-kernels",
    "invariance",
    "experts",
    NAMED,
    "adapters",
    "matrix-kernels",
    "triton-matrices",
    "quantisation",
    "packing",
    "kernels",
    "token-search",
    "triton-layers",
    "triton-truncation",
    "graphs",
)
INSTALLED_CONFLICTS = Conflicts(
    "model_passes",
    {
        "pipeline_parallel_size": "results are compared over all stages, which might not all use a pass; use "
        "--tensor-parallel-size instead",
        "enforce_eager": "no pass is applied then; leave one of them out",
        "fuse": "no pass is applied then; leave one of them out",
    },
)  # of passes of other packages


def device_passes(
    device: str, known: Mapping[str, Mapping[str, str]] = DEVICE_PASSES
) -> list[type[ModelPass]]:
    """Passes for this type of device, used without being named. Without their distribution torch alone computes.

    `known`: names by type of device, and their distribution.
    """
    wanted = known.get(device, {})
    missing = missing_passes(wanted)
    if missing:
        logger.info(
            "No model passes for device %s are installed, using torch operations; pip install %s",
            device,
            " ".join(sorted(set(missing.values()))),
        )
    return [resolve_class(MODEL_PASSES, name, {}) for name in wanted if name not in missing]


def in_order(device: str, named: Sequence[Kind] = ()) -> list[Kind]:
    """All passes for a type of device, with the named ones of other packages."""
    found: list[Kind] = [(each, None) for each in (*OWN, *device_passes(device))]
    return sorted([*found, *named], key=_place)


def _place(kind: Kind) -> int:
    name = kind[0].name if kind[1] is None else NAMED
    return ORDER.index(name)
