"""A model that is loaded and checked. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_worker_transformers.generation import GenerateCalls
from tenonry_worker_transformers.pieces import Batching
from tenonry_worker_transformers.self_check import Checked, check, measure, prompts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.buffers import StepBuffers


class LoadedModel:
    """A model as used by the runner."""

    def __init__(
        self,
        module: PreTrainedModel,
        buffers: StepBuffers,
        *,
        max_model_len: int,
        skip_check: bool,
        batching: bool,
    ) -> None:
        self.device = module.device
        self.dtype = module.dtype
        self.buffers = buffers
        self.calls = GenerateCalls(module)
        self.vocab_size = int(module.config.get_text_config().vocab_size)
        self.checked = self._checked(max_model_len, skip_check=skip_check)
        if not batching:
            self.checked.batching = Batching.NONE

    @torch.inference_mode()
    def _checked(self, max_model_len: int, *, skip_check: bool) -> Checked:
        """Capabilities of the model's cache. Raises ModelError, also for errors of the model's own `generate`."""
        try:
            if not skip_check:
                return check(self.calls, max_model_len)
            found = Checked()
            measure(self.calls, found, max_model_len)
            return found
        except (ModelError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # any class: it is the model's code
            reason = " ".join(str(error).split())[:300]
            raise ModelError(
                f"{type(self.calls.module).__name__} cannot run on worker 'transformers': its `generate` fails with "
                f"{type(error).__name__}: {reason}; look at its config.json and generation_config.json"
            ) from error

    @torch.inference_mode()
    def step_bytes(self, num_tokens: int) -> int:
        """Bytes of a CUDA device that a prompt of `num_tokens` takes while it is computed, beyond its K/V."""
        (prompt,) = prompts(self.calls, [num_tokens])
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        prepared = self.calls.prepare(prompt, 1)
        self.calls.start(prepared, prepared.input_ids.shape[1])
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before
