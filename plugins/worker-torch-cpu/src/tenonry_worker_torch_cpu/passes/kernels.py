"""Pass that assigns step kernels to the parts of a model. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.linear import is_half_on_host
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch_cpu.kernels.bfloat16 import bfloat16_parts
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser, listed
from tenonry_worker_torch_cpu.kernels.float32 import float32_parts
from tenonry_worker_torch_cpu.kernels.low_bit import LowBitKernels
from tenonry_worker_torch_cpu.passes.alone import why_no_kernels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts
    from tenonry_worker_torch.step_kernels import FoundKernels
    from tenonry_worker_torch_cpu.kernels.candidate import Candidate


class ChosenKernels(ModelPass):
    """Step kernels for the parts that are correct and faster with them, of float and of quantised weights.

    Attention has none if kernels cannot read the format of the cache.
    """

    name = "kernels"

    def __init__(self) -> None:
        self._chooser: KernelChooser | None = None

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return why_no_kernels(model, facts)

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        found: FoundKernels = facts.kernels  # type: ignore[assignment] - `why_not` looked
        chooser = self._chooser = KernelChooser(found)
        low_bit = _low_bit(model)
        changes.on_undo(partial(self._describe, model, found))  # the last to be undone
        changes.on_undo(chooser.forget)
        if low_bit is not None and isinstance(model.forward, FusedForward):
            changes.on_undo(partial(low_bit.leave_to_quantisation, model.forward))
        chooser.apply(_candidates(chooser, model, facts.storage), changes)
        self._describe(model, found)
        counts = chooser.counts if low_bit is None else chooser.counts + low_bit.counts
        return listed(counts) or "no part is faster with one"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Compare, if any part has a kernel."""
        counted = [part.counts for part in (self._chooser, _low_bit(model)) if part is not None]
        if not facts.is_checked or not any(counted):
            return True
        if model.dtype == torch.float32 and model.quantisation is None:
            return facts.checks.agrees(model.forward)
        # In bfloat16 or quantised, the model's own code has lost its weights.
        return facts.checks.still_agrees(model.forward)

    def _describe(self, model: LoadedModel, found: FoundKernels) -> None:
        """Report the kernels of a model, and the operations left to torch."""
        computes = model.dtype == torch.float32 or is_half_on_host(model.dtype, model.device)
        if self._chooser is not None and computes:
            texts = [self._chooser.text]
        else:
            texts = [
                f"Step kernels {found.text} do not compute in {str(model.dtype)[6:]} here: torch does"
            ]
        low_bit = _low_bit(model)
        if low_bit is not None:
            texts.append(low_bit.text)
        model.chosen_kernels = "; ".join(texts)


def _candidates(
    chooser: KernelChooser, model: LoadedModel, storage: KVStorage
) -> Iterable[Candidate]:
    """Return the candidates of a model by its type; none without step kernels for it."""
    if model.dtype == torch.float32:
        return float32_parts(
            model.forward,
            model.mixers,
            has_adapters=model.adapters is not None,
            reads_cache=storage.is_exact,
        )
    if is_half_on_host(model.dtype, model.device):
        reads_cache = storage.is_exact or storage.name in chooser.kernels.kept
        return bfloat16_parts(model.forward, model.backend, reads_cache=reads_cache)
    return ()


def _low_bit(model: LoadedModel) -> LowBitKernels | None:
    """Kernels of quantised matrices, if the model has any."""
    kernels = model.matrix_kernels
    is_used = model.quantisation is not None and isinstance(kernels, LowBitKernels)
    return kernels if is_used else None
