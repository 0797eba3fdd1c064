"""The facts of workers that run a model on one rank, through its own class in transformers. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.info import WorkerFacts
from tenonry_torch_base.device import choose_device, choose_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry.interfaces.worker import WorkerContext
    from tenonry_torch_base.checkpoint import Checkpoint


def one_rank_facts(
    worker: str,
    architecture: str,
    whole: PreTrainedModel,
    checkpoint: Checkpoint | None,
    context: WorkerContext,
    **features: Any,
) -> WorkerFacts:
    """Facts known without weights. `whole`: the model without storage; `features`: additional to those of one rank."""
    config = context.config
    device = choose_device(config.device, context.local_rank)
    dtype = choose_dtype(config.dtype, whole.config, device)
    num_parameters = sum(weight.numel() for weight in whole.parameters())
    return WorkerFacts(
        architecture=architecture,
        worker=worker,
        model_type=str(whole.config.model_type),
        num_parameters=num_parameters,
        weight_bytes=num_parameters * dtype.itemsize,
        stored_bytes=0 if checkpoint is None else checkpoint.num_bytes,
        features={
            "dtype": str(dtype).removeprefix("torch."),
            "tensor_parallel": [1],
            "pipeline_parallel": 1,
            "prefix_caching": False,
            "lora": False,
            **features,
        },
    )
