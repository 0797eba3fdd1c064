"""Pass over the linear layers of a model that pools. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed
from tenonry_worker_torch_cpu.packing.prompts import can_pack, pack_linears

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class PromptLinears(ModelPass):
    """Weights laid out for batches of prompts."""

    name = "packing"

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if can_pack(model.dtype, model.device):
            return None
        return f"oneDNN does not lay out {str(model.dtype)[6:]} on {model.device}"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        count = pack_linears(model.module, changes.set)
        if not count:
            raise NotUsed("no layer is large enough")
        return f"{count} linear layers"
