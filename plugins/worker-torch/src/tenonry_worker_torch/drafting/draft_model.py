"""A draft model over K/V of its own, in the blocks of its slots: histories in, the likeliest next tokens out. Worker
process.

It runs like the served model: the same attention backends, fused layers and step kernels, over flattened batches of
rows. A row's cached tokens are compared with each history and truncated where the two differ, so accepted and rejected
drafts, or tokens decoded without drafts, need no special handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import KNOWN_TO_WORKER, SchedulerOutput
from tenonry_drafters.draft_slots import DraftSlots
from tenonry_drafters.models import NO_TOKEN, NextTokens
from tenonry_torch_base.profiling import scoped
from tenonry_worker_torch.batch import attention_batch, pruned_batch, tokens_as_rows
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.kv_binding import bind_kv_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from tenonry.step import I32
    from tenonry_scheduling.columns import StepInputs
    from tenonry_worker_torch.loaded_model import LoadedModel

CHUNK = 256  # tokens of a history in one pass: the memory bound of a pass
MAX_SPLIT = 16  # tokens of a pass computed as separate rows, where attention is faster so


class TorchDraftModel:
    """`vocab_size`: of the model that is served; no id from there on is guessed. `places`: around each pass."""

    def __init__(
        self,
        model: LoadedModel,
        slots: DraftSlots,
        vocab_size: int,
        places: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.model = model
        self.slots = slots
        self.num_forward_tokens = 0
        self._vocab_size = min(vocab_size, model.vocab_size)
        self._has_all_ids = vocab_size <= model.vocab_size
        self._places = places
        caches = model.backend.allocate(slots.num_blocks, slots.state.block_size)
        bind_kv_cache(caches, model.layers, [])

    def leave(self, row: int) -> None:
        self.slots.leave(row)

    def next_tokens(self, rows: Sequence[int], histories: Sequence[I32]) -> NextTokens:
        token_ids = np.full(len(rows), NO_TOKEN, np.int32)
        probability = np.zeros(len(rows), np.float32)
        places = [place for place, history in enumerate(histories) if self._can_continue(history)]
        if places:
            slots = self.slots.take([rows[place] for place in places])
            counts = [
                self._nearly_there(slot, histories[place])
                for slot, place in zip(slots.tolist(), places, strict=True)
            ]
            logits = self._pass(slots, np.array(counts, np.int32))
            token_ids[places], probability[places] = likeliest(logits[:, : self._vocab_size])
        return NextTokens(token_ids, probability)

    def _can_continue(self, history: I32) -> bool:
        if len(history) > self.slots.max_len:
            return False
        return self._has_all_ids or int(history.max()) < self.model.vocab_size

    def _nearly_there(self, slot: int, history: I32) -> int:
        """Compute a history except its last tokens, of which at most CHUNK remain; returns their number."""
        left = self.slots.begin(slot, history)
        row = np.array([slot], np.int32)
        while left > CHUNK:
            self._pass(row, np.array([CHUNK], np.int32), samples=False)
            left -= CHUNK
        return left

    @scoped("tenonry: draft")
    @torch.inference_mode()
    def _pass(self, slots: I32, counts: I32, *, samples: bool = True) -> torch.Tensor:
        """Compute the next `counts` tokens of `slots`; logits [R, vocabulary] of the last of each, if it `samples`."""
        buffers = self.model.buffers
        buffers.begin_step()
        inputs = self._inputs(slots, counts, samples)
        ends = inputs.query_start_loc[1:][inputs.samples].astype(np.int64) - 1
        decodes = len(ends) == len(inputs.token_ids)
        keep = None if decodes else buffers.put("keep", ends)
        plans = self._plans(inputs, prunes=keep is not None)
        token_ids = torch.from_numpy(inputs.token_ids.astype(np.int64))
        positions = buffers.put("positions", inputs.positions.astype(np.int64))
        with self._places():
            return self.model.forward(token_ids, positions, keep, plans)

    def _inputs(self, slots: I32, counts: I32, samples: bool) -> StepInputs:
        num_tokens = int(counts.sum())
        self.num_forward_tokens += num_tokens
        step = SchedulerOutput(
            step_id=0,
            row=slots,
            num_tokens=counts,
            next_token=np.full(len(slots), KNOWN_TO_WORKER, np.int32),
            samples=np.full(len(slots), samples),
            total_tokens=num_tokens,
        )
        return self.slots.state.apply(step)

    def _plans(self, inputs: StepInputs, *, prunes: bool) -> ForwardPlans:
        """`prunes`: the last layer may continue with the last tokens alone."""
        buffers = self.model.buffers
        backend = self.model.backend
        batch = attention_batch(
            inputs, self.slots.state, self.slots.generation, buffers, backend.num_groups
        )
        has_few = prunes and inputs.samples.all() and len(inputs.token_ids) <= MAX_SPLIT
        if has_few and backend.splits_rows:
            return ForwardPlans(backend.plan(tokens_as_rows(batch)))
        plans = ForwardPlans(backend.plan(batch))
        if prunes and self.model.forward.can_prune:
            plans.last = backend.plan(pruned_batch(batch, plans.full, inputs.samples, buffers))
        return plans


def likeliest(logits: torch.Tensor) -> tuple[I32, np.ndarray]:
    """The best token of each line of `logits` [R, vocabulary], i32[R], and its probability, f32[R]."""
    precise = logits.float()
    best, token_ids = precise.max(dim=-1)
    probability = torch.exp(best - precise.logsumexp(dim=-1))
    return token_ids.numpy().astype(np.int32), probability.numpy()
