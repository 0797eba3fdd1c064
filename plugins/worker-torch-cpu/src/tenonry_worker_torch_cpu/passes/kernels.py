"""Pass that assigns step kernels to the parts of a model. Worker process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch_cpu.kernels.bfloat16 import Bfloat16Kernels
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser, listed
from tenonry_worker_torch_cpu.kernels.float32 import Float32Kernels
from tenonry_worker_torch.fuse.linear import is_half_on_host
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.step_kernels import FoundKernels
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


def may_have_kernels(model: LoadedModel) -> bool:
    """Return False for several ranks, which would have to agree on their timings."""
    parallel = model.parallel
    return parallel.layer_mates.size == 1 and parallel.link.num_stages == 1


class ChosenKernels(ModelPass):
    """Step kernels for the parts that are correct and faster with them, of float and of quantised weights.

    Attention has none if kernels cannot read the format of the cache.
    """

    name = "kernels"

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if facts.kernels is None:
            return "there are no step kernels"
        return None if may_have_kernels(model) else "several ranks share the model"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        found: FoundKernels = facts.kernels  # type: ignore[assignment] - `why_not` looked
        storage = facts.storage
        chooser = model.chooser = KernelChooser(found)
        few_bits = model.few_bits
        changes.on_undo(chooser.forget)
        if few_bits is not None and isinstance(model.forward, LeanForward):
            changes.on_undo(partial(few_bits.leave_to_quantisation, model.forward))
        if model.dtype == torch.float32:
            Float32Kernels(chooser, changes).give(
                model.forward,
                model.mixers,
                has_adapters=model.adapters is not None,
                reads_cache=storage.is_exact,
            )
        elif is_half_on_host(model.dtype, model.device):
            reads_cache = storage.is_exact or storage.name in found.kernels.kept
            Bfloat16Kernels(chooser, changes).give(
                model.forward, model.backend, reads_cache=reads_cache
            )
        counts = chooser.counts if few_bits is None else chooser.counts + few_bits.counts
        return listed(counts) or "no part is faster with one"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Compare, if any part has a kernel."""
        counted = [part.counts for part in (model.chooser, model.few_bits) if part is not None]
        if not facts.is_checked or not any(counted):
            return True
        if model.dtype == torch.float32 and model.quantisation is None:
            return facts.checks.agrees(model.forward)
        # In bfloat16 or quantised, the model's own code has lost its weights.
        return facts.checks.still_agrees(model.forward)


def kernel_text(model: LoadedModel, found: FoundKernels) -> str:
    """Kernels of a model, and what torch computes, for the log."""
    computes = model.dtype == torch.float32 or is_half_on_host(model.dtype, model.device)
    if model.chooser is not None and computes:
        texts = [model.chooser.text]
    else:
        texts = [
            f"Step kernels {found.text} do not compute in {str(model.dtype)[6:]} here: torch does"
        ]
    if model.few_bits is not None:
        texts.append(model.few_bits.text)
    return "; ".join(texts)
