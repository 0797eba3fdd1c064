"""The self check at start: two prompts packed into one batch must give the logits that they give apart. Each pipeline
stage checks its own layers, with the hidden states that it was sent for the prompts. Worker process.

It catches layers that mix tokens without attention, and any mistake in what was done to the model after loading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.errors import ModelError
from tenonry.sampling_params import SamplingParams
from tenonry.step import BatchState, NewRow, SchedulerOutput
from tenonry_worker_torch.batch import attention_batch
from tenonry_worker_torch.forward import Forward, ForwardPlans
from tenonry_worker_torch.kv_binding import bind_kv_cache

if TYPE_CHECKING:
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_worker_torch.attention.base import AttentionBackend
    from tenonry_worker_torch.attention.layer import AttentionLayer

BLOCK_SIZE = 16
# Largest relative error (L2, per position) taken for rounding. Mixing two prompts gives errors near 1; deep models in
# bfloat16 were seen at a few percent. The median over positions is compared, since routers of expert layers may tip.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Median over positions of ‖got − wanted‖ / ‖wanted‖, for [length, vocabulary]; NaN counts as infinite."""
    wanted = wanted.float()
    difference = (got.float() - wanted).norm(dim=-1)
    error = difference / wanted.norm(dim=-1).clamp_min(1e-6)  # [length]
    error = torch.nan_to_num(error, nan=float("inf"))
    return float(error.median())


class PackedRun:
    """Runs several prompts as one batch over a small cache of its own."""

    def __init__(
        self,
        backend: AttentionBackend,
        layers: dict[str, AttentionLayer],
        buffers: StepBuffers,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        self.backend = backend
        self.layers = layers
        self.buffers = buffers
        self.block_size = block_size

    def logits(self, forward: Forward, prompts: list[torch.Tensor]) -> list[torch.Tensor]:
        """Logits of every position, one tensor [length, vocabulary] per prompt."""
        logits = self._run(forward, prompts, None)
        return list(logits.split([len(prompt) for prompt in prompts]))

    def last_logits(self, forward: Forward, prompts: list[torch.Tensor]) -> torch.Tensor:
        """Logits [prompts, vocabulary] of the last positions only, as serving computes them."""
        ends = np.cumsum([len(prompt) for prompt in prompts]) - 1
        keep = torch.as_tensor(ends, device=prompts[0].device)
        return self._run(forward, prompts, keep)

    def release(self) -> None:
        """Free the small cache."""
        for layer in self.layers.values():
            layer.kv_cache = []
        self.backend.allocate(1, self.block_size)  # the backend may hold what it allocated last

    def _run(
        self,
        forward: Forward,
        prompts: list[torch.Tensor],
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        lengths = [len(prompt) for prompt in prompts]
        blocks = [-(-length // self.block_size) for length in lengths]
        caches = self.backend.allocate(1 + sum(blocks), self.block_size)
        bind_kv_cache(caches, self.layers, [])
        state = BatchState(len(prompts), max(lengths), self.block_size)
        inputs = state.apply(_step_of(lengths, blocks))
        self.buffers.begin_step()
        generation = np.zeros(len(prompts), np.int64)
        batch = attention_batch(inputs, state, generation, self.buffers)
        positions = torch.from_numpy(inputs.positions.astype(np.int64))
        with torch.inference_mode():
            return forward(
                torch.cat(prompts),
                positions.to(prompts[0].device),
                keep,
                ForwardPlans(self.backend.plan(batch)),
            )


def _step_of(lengths: list[int], blocks: list[int]) -> SchedulerOutput:
    """A step that computes whole prompts. Which tokens they are does not matter here."""
    ends = np.cumsum([1, *blocks])  # block 0 is left out
    count = len(lengths)
    new = [
        NewRow(
            row=row,
            handle=row + 1,
            token_ids=np.zeros(lengths[row], np.int32),
            num_computed=0,
            num_output=0,
            block_ids=(np.arange(ends[row], ends[row + 1], dtype=np.int32),),
            sampling=SamplingParams(temperature=0.0),
        )
        for row in range(count)
    ]
    return SchedulerOutput(
        step_id=0,
        new=new,
        row=np.arange(count, dtype=np.int32),
        num_tokens=np.array(lengths, np.int32),
        next_token=np.full(count, -1, np.int32),
        samples=np.ones(count, np.bool_),
    )


def logits_agree(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """Whether all prompts are within the tolerance of their data type."""
    pairs = zip(got, wanted, strict=True)
    return all(relative_error(one, other) <= TOLERANCE[other.dtype] for one, other in pairs)


def check_model(
    packed: list[torch.Tensor],
    apart: list[torch.Tensor],
    architecture: str,
) -> None:
    """Raises ModelError naming the architecture when the packed logits are not those of the prompts on their own."""
    for number, (got, wanted) in enumerate(zip(packed, apart, strict=True)):
        error = relative_error(got, wanted)
        allowed = TOLERANCE[wanted.dtype]
        if not error <= allowed:
            raise ModelError(
                f"{architecture} fails the self check of worker 'torch': prompt {number + 1} of two gives other logits "
                f"in a packed batch than on its own (relative error {error:.3g}, allowed {allowed:g}), so requests "
                "would disturb each other; --skip-model-check runs it anyway"
            )
