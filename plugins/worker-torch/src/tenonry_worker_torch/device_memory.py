"""Memory of a model's largest step on a CUDA device, and the remainder for its KV cache. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.memory import free_device_memory
from tenonry_torch_base.sampler.memory import sampling_bytes
from tenonry_worker_torch.loading.packed_run import PackedRun

if TYPE_CHECKING:
    from tenonry_worker_torch.loaded_model import LoadedModel


def device_memory(
    model: LoadedModel, num_tokens: int, utilization: float, max_num_seqs: int
) -> int:
    """Bytes of a CUDA device for the KV cache: its share, less used memory and the requirement of the largest step with
    sampling.
    """
    torch.cuda.synchronize(model.device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    whole, rest = divmod(num_tokens, model.max_model_len)
    lengths = [*[model.max_model_len] * whole, *([rest] if rest else [])]
    prompts = [model.parallel.link.blank(length) for length in lengths]
    run = PackedRun(model.backend, model.layers, model.buffers, is_last=model.parallel.link.is_last)
    run.last_logits(model.forward, prompts)
    torch.cuda.synchronize(model.device)
    needed = torch.cuda.max_memory_allocated(model.device) - before
    run.release()
    if model.parallel.link.is_last:
        needed += sampling_bytes(max_num_seqs, model.vocab_size, model.max_model_len)
    return free_device_memory(model.device, utilization, needed)
