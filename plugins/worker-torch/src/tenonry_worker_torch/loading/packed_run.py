"""Runs several prompts as one batch over a small separate cache, step by step, like serving. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_scheduling.columns import BatchState
from tenonry_worker_torch.batch import attention_batch, pruned_batch
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.kv_binding import bind_kv_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.kv_cache import LengthClasses
    from tenonry_scheduling.columns import StepInputs
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_worker_torch.forward import Forward

BLOCK_SIZE = 16


class PackedRun:
    """Runs prompts as one batch. A prompt is the stage's input: token ids, or hidden states [length, hidden].

    `is_last`: the stage makes logits, and only of the tokens that are kept; another makes hidden states of all tokens.
    """

    def __init__(
        self,
        backend: AttentionBackend,
        layers: dict[str, AttentionLayer],
        buffers: StepBuffers,
        *,
        is_last: bool = True,
        block_size: int = BLOCK_SIZE,
        lengths: LengthClasses | None = None,
    ) -> None:
        """`lengths`: as `LoadedModel` has them."""
        self.backend = backend
        self.layers = layers
        self.buffers = buffers
        self.is_last = is_last
        self.block_size = block_size
        self.lengths = lengths

    def last_logits(self, forward: Forward, prompts: list[torch.Tensor]) -> torch.Tensor:
        """Logits [prompts, vocabulary] of the last positions, all prompts computed whole in one step."""
        lengths = [len(prompt) for prompt in prompts]
        return torch.stack([made[0] for made in self.steps(forward, prompts, [lengths])])

    def steps(
        self,
        forward: Forward,
        prompts: list[torch.Tensor],
        steps: list[list[int]],
        *,
        cache_size: int = 1,
        last_seen: Sequence[NDArray[np.int64]] | None = None,
        keeps_all: bool = False,
        first: Forward | None = None,
    ) -> list[list[torch.Tensor]]:
        """Compute `steps[s][p]` further tokens of prompt p in step s. Returns, for each prompt, the output for the last
        token of each of its steps: logits [vocabulary], or hidden states sent by a stage; with `keeps_all`, for every
        token.

        `cache_size`: size of the cache relative to the minimum. `last_seen`: for each prompt, the last position visible
        to each of its tokens, if that may be a later one of the same step. `first`: computes the first step instead of
        `forward`, and its output is dropped.
        """
        lengths = [len(prompt) for prompt in prompts]
        blocks = [-(-length // self.block_size) for length in lengths]
        num_groups = self.backend.num_groups
        num_blocks = cache_size * (1 + num_groups * sum(blocks))
        bind_kv_cache(self.backend.allocate(num_blocks, self.block_size), self.layers, [])
        state = BatchState(len(prompts), max(lengths), self.block_size, num_groups)
        entering = dict(enumerate(_new_rows(lengths, blocks, num_groups)))
        done = [0] * len(prompts)
        made: list[list[torch.Tensor]] = [[] for _ in prompts]
        for number, counts in enumerate(steps):
            rows = [row for row, count in enumerate(counts) if count]
            spans = [(row, slice(done[row], done[row] + counts[row])) for row in rows]
            for row, span in spans:
                done[row] = span.stop
            new = [entering.pop(row) for row in rows if row in entering]
            found = self._forward(
                forward if number or first is None else first,
                state,
                state.apply(_step_of(rows, counts, new)),
                torch.cat([prompts[row][span] for row, span in spans]),
                last_seen=None
                if last_seen is None
                else np.concatenate([last_seen[row][span] for row, span in spans]),
                keeps_all=keeps_all,
            )
            if first is not None and not number:
                continue
            kept = [counts[row] if keeps_all else 1 for row in rows]
            for row, part in zip(rows, found.split(kept), strict=True):
                made[row].extend(part)
        self.backend.release(np.arange(len(prompts), dtype=np.int32))
        return made

    def release(self) -> None:
        """Free the small cache."""
        for layer in self.layers.values():
            layer.kv_cache = []
        self.backend.allocate(1, self.block_size)  # the backend may hold its last allocation

    def _forward(
        self,
        forward: Forward,
        state: BatchState,
        inputs: StepInputs,
        given: torch.Tensor,
        *,
        last_seen: NDArray[np.int64] | None,
        keeps_all: bool,
    ) -> torch.Tensor:
        """Output for each row's last token, or for all tokens."""
        self.buffers.begin_step()
        ends = torch.as_tensor(inputs.query_start_loc[1:].astype(np.int64) - 1, device=given.device)
        # Where rows only decode, every token is kept, as the runner does it.
        selects = not keeps_all and len(ends) < len(given)
        generation = np.zeros(state.token_ids.shape[0], np.int64)
        batch = attention_batch(inputs, state, generation, self.buffers, self.backend.num_groups)
        batch.last_seen = last_seen
        plans = ForwardPlans(self.backend.plan(batch))
        if self.lengths is not None:
            rows = inputs.token_row
            counted = np.maximum(state.num_prompt[rows], inputs.positions + 1)
            plans.lengths = self.buffers.put("lengths", counted.astype(np.int64))
        if forward.can_prune and selects:
            pruned = pruned_batch(batch, plans.full, inputs.samples, self.buffers)
            plans.last = self.backend.plan(pruned)
        positions = torch.from_numpy(inputs.positions.astype(np.int64))
        with torch.inference_mode():
            keep = ends if selects else None
            made = forward(given, positions.to(given.device), keep, plans)
        if keeps_all:
            return made
        # The first rows, like the runner's.
        return made[: len(ends)] if self.is_last else made[ends]


def _new_rows(lengths: list[int], blocks: list[int], num_groups: int) -> list[NewRow]:
    """Rows with arbitrary token ids, which are not read."""
    ends = np.cumsum([1, *blocks])  # block 0 is left out
    later = sum(blocks) * np.arange(num_groups, dtype=np.int32)
    return [
        NewRow(
            row=row,
            handle=row + 1,
            token_ids=np.zeros(length, np.int32),
            num_computed=0,
            num_output=0,
            block_ids=tuple(
                np.arange(ends[row], ends[row + 1], dtype=np.int32) + shift for shift in later
            ),
            sampling=SamplingParams(temperature=0.0),
        )
        for row, length in enumerate(lengths)
    ]


def _step_of(rows: list[int], counts: list[int], new: list[NewRow]) -> SchedulerOutput:
    num_tokens = [counts[row] for row in rows]
    return SchedulerOutput(
        step_id=0,
        new=new,
        row=np.array(rows, np.int32),
        num_tokens=np.array(num_tokens, np.int32),
        next_token=np.full(len(rows), -1, np.int32),
        samples=np.ones(len(rows), np.bool_),
        total_tokens=sum(num_tokens),
    )
