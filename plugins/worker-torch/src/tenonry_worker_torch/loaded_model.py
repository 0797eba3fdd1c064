"""A loaded model from the view of the runner: module, forward pass, attention layers, and selected passes. Worker
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_torch_base.attention.layer import LAYER_ATTRIBUTE, AttentionLayer, LayerCalls, StepPlan
from tenonry_torch_base.sampler.choose import sorted_thresholds
from tenonry_worker_torch.forward import Forward, ModuleForward, StepLengths
from tenonry_worker_torch.pass_report import PassReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry.kv_cache import LengthClasses
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_torch_base.attention.groups import LayerGroup
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_torch_base.quantisations import Quantisation, QuantisedLinear
    from tenonry_torch_base.sampler.choose import Thresholds
    from tenonry_torch_base.step_kernels import BestAllowedKernel
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.fuse.quantised import MatrixKernels
    from tenonry_worker_torch.images.encoder import ImageEncoder
    from tenonry_worker_torch.loading.probe import ProbeResult
    from tenonry_worker_torch.pooling.pooler import Pooler
    from tenonry_worker_torch.state.mixer import PackedMixer
    from tenonry_worker_torch.step_kernels import FoundKernels


class LoadedModel:
    """A model as used by the runner. `layers` is keyed by the attention module's name."""

    def __init__(
        self,
        module: PreTrainedModel,
        backend: AttentionBackend,
        buffers: StepBuffers,
        found: ProbeResult,
        max_model_len: int,
        parallel: Parallel,
        groups: Sequence[LayerGroup] = (),
        lengths: tuple[StepLengths, LengthClasses] | None = None,
    ) -> None:
        """`lengths`: result of `follow_lengths`."""
        self.module = module
        self.states = found.states
        self.backend = backend
        self.groups = tuple(groups)
        self.buffers = buffers
        self.device = module.device
        self.dtype = module.dtype
        self.vocab_size = found.made.shape[-1]  # of the last stage; the others never sample
        self.parallel = parallel
        self.max_model_len = max_model_len
        step = StepPlan(backend)
        self.layers: dict[str, AttentionLayer] = {}
        calls: dict[nn.Module, list[AttentionLayer]] = {}
        described = zip(found.specs, found.rank_heads, found.sinks, found.modules, strict=True)
        for spec, rank_heads, sinks, attention in described:
            layer = AttentionLayer(spec, step, rank_heads, sinks)
            self.layers[spec.name] = layer
            calls.setdefault(attention, []).append(layer)
        for attention, layers in calls.items():
            layer_of = layers[0] if len(layers) == 1 else LayerCalls(layers, step)
            setattr(attention, LAYER_ATTRIBUTE, layer_of)
        self.lengths = lengths and lengths[1]
        self.forward: Forward = ModuleForward(module, step, lengths and lengths[0])
        self.step = step
        self.adapters: Adapters | None = None
        self.images: ImageEncoder | None = None
        self.pooler: Pooler | None = None  # of a model with vectors instead of logits
        self.kernels: FoundKernels | None = None
        self.chosen_kernels = "Step kernels: none, torch alone computes"
        self.passes = PassReport()
        self.quantisation: Quantisation | None = None
        self.quantised_layers: Sequence[QuantisedLinear] = ()
        self.best_allowed: BestAllowedKernel | None = None  # search for tokens of grammars
        self.thresholds: Thresholds = sorted_thresholds  # of top-k and top-p on a device
        self.matrix_kernels: MatrixKernels | None = None  # of its quantised matrices
        self.make_pass: Callable[..., Any] | None = None  # instead of the runner's `ForwardPass`
        self.is_invariant = False  # results of a row are independent of other rows

    @property
    def mixers(self) -> list[PackedMixer]:
        """The layers with state."""
        return [] if self.states is None else self.states.mixers
