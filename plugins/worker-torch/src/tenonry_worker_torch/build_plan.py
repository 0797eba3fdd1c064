"""Plan for loading a model, as a value. Worker process."""

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
    """Parts and settings that convert a loaded module to a served model.

    `window_groups`: separate KV groups for layers with a window. `adapters`: adapters may be loaded. `image_check`:
    enables the vision encoder, and verifies it. `kernels`: for parts of a step. `quantisation`: its layers replace
    linear ones. `invariant`: a row's results are independent of other rows; it needs `kernels` and `fuse`.
    `kv_cache_dtype`: storage of K and V; everything else is first compared with floats in the cache. `passes`:
    additional model passes.
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
