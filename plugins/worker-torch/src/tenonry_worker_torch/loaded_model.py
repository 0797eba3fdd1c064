"""A model that is loaded, described, made fast and checked. Worker process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError, ModelError
from tenonry_worker_torch.attention.layer import LAYER_ATTRIBUTE, AttentionLayer, StepPlan
from tenonry_worker_torch.forward import Forward, ModuleForward
from tenonry_worker_torch.loading.probe import ProbeResult, probe
from tenonry_worker_torch.loading.rotary import fix_frequencies
from tenonry_worker_torch.loading.self_check import PackedRun, check_model, logits_agree
from tenonry_worker_torch.parallel.groups import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_worker_torch.attention.base import AttentionBackend
    from tenonry_worker_torch.parallel.groups import Parallel


class LoadedModel:
    """What the runner needs of a model. `layers` is keyed by the attention module's name."""

    def __init__(
        self,
        module: PreTrainedModel,
        backend: AttentionBackend,
        buffers: StepBuffers,
        found: ProbeResult,
        max_model_len: int,
        parallel: Parallel,
    ) -> None:
        self.module = module
        self.backend = backend
        self.buffers = buffers
        self.device = module.device
        self.dtype = module.dtype
        self.vocab_size = found.logits[0].shape[-1]  # of the last stage; the others never sample
        self.parallel = parallel
        self.max_model_len = max_model_len
        step = StepPlan(backend)
        self.layers: dict[str, AttentionLayer] = {}
        described = zip(found.specs, found.rank_heads, found.modules, strict=True)
        for spec, rank_heads, attention in described:
            layer = AttentionLayer(spec, step, rank_heads)
            self.layers[spec.name] = layer
            setattr(attention, LAYER_ATTRIBUTE, layer)
        self.forward: Forward = ModuleForward(module, step)
        self.step = step


def build(
    module: PreTrainedModel,
    backend_class: type[AttentionBackend],
    buffers: StepBuffers,
    *,
    max_model_len: int,
    fuse: bool,
    skip_check: bool,
    parallel: Parallel | None = None,
) -> LoadedModel:
    """Probe the module, bind it to a backend, make it fast, and check it. Raises ModelError or ConfigError."""
    fix_frequencies(module, max_model_len)
    parallel = parallel or alone()
    config = module.config.get_text_config()
    parallel.link.carries(int(config.hidden_size), module.dtype, module.device)
    with _named_failure(module, parallel.tensor.size):
        found = probe(module, int(config.vocab_size), parallel.link)
    reason = backend_class.refusal(found.specs, module.dtype, module.device)
    if reason:
        raise ConfigError(
            f"attention backend '{backend_class.name}' cannot run {type(module).__name__}: {reason}"
        )
    backend = backend_class(found.specs, module.dtype, module.device)
    model = LoadedModel(
        module,
        backend,
        buffers,
        found,
        max_model_len,
        parallel,
    )
    run = PackedRun(model.backend, model.layers, buffers)
    if fuse:
        _make_fast(model, found, run, max_model_len)
    if not skip_check:
        packed = run.logits(model.forward, found.prompts)
        check_model(packed, found.logits, type(module).__name__)
    run.release()
    return model


@contextmanager
def _named_failure(module: PreTrainedModel, size: int) -> Iterator[None]:
    """A plan may leave out what its family's options need: the first run of cut layers shows it."""
    try:
        yield
    except torch.distributed.DistError:  # another rank is gone: the executor reports that
        raise
    except RuntimeError as error:
        if size == 1:
            raise
        raise ModelError(
            f"{type(module).__name__} cannot run cut into {size} ranks as its tensor parallel plan says: {error}; use "
            "tensor_parallel_size=1"
        ) from error


def _make_fast(
    model: LoadedModel,
    found: ProbeResult,
    run: PackedRun,
    max_model_len: int,
) -> None:
    from tenonry_worker_torch.fuse import fast_forward

    def is_right(forward: Forward) -> bool:
        return logits_agree(run.logits(forward, found.prompts), found.logits)

    group = model.parallel.tensor
    lean = fast_forward(
        model.module,
        model.layers,
        model.step,
        max_model_len,
        is_right,
        group.all_agree,
    )
    if lean is not None:
        model.forward = lean
