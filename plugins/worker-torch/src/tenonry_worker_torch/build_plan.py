"""A model that is to be loaded, and in which way, as a value. Worker process."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

from tenonry_torch_base.attention.kv_storage import AUTO
from tenonry_torch_base.parallel.groups import Parallel, alone
from tenonry_torch_base.phases import Phases

if TYPE_CHECKING:
    from tenonry.info import PluginRecord
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.images.check import ImageCheck
    from tenonry_worker_torch.passes.model_pass import ModelPass
    from tenonry_worker_torch.step_kernels import FoundKernels


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Parts and settings that turn a loaded module into a model that serves.

    `window_groups`: layers with a window are in KV groups of their own. `adapters`: if there may be any. `image_check`:
    enables the vision encoder, and verifies it. `kernels`: for parts of a step. `quantisation`: its layers replace
    linear ones. `invariant`: a row's results may depend on no other row; it needs `kernels` and `fuse`.
    `kv_cache_dtype`: storage of K and V; all else is compared with floats in the cache before. `passes`: additional
    model passes.
    """

    backend: type[AttentionBackend]
    buffers: StepBuffers
    _: KW_ONLY
    max_model_len: int
    fuse: bool
    skip_check: bool
    window_groups: bool = False
    parallel: Parallel = field(default_factory=alone)
    phases: Phases = field(default_factory=Phases)
    adapters: Adapters | None = None
    image_check: ImageCheck | None = None
    kernels: FoundKernels | None = None
    quantisation: Quantisation | None = None
    invariant: bool = False
    kv_cache_dtype: str = AUTO
    passes: tuple[tuple[type[ModelPass], PluginRecord], ...] = ()
