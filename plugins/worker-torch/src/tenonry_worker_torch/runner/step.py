"""One pass of the model as a value: its inputs, and the results that runner and features add. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_scheduling.columns import StepInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.step import SchedulerOutput
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.results import PromptPart
    from tenonry_torch_base.sampler.processors import SampleStep
    from tenonry_torch_base.sampler.sampler import Sampled
    from tenonry_torch_base.verification import Verification

    I64 = NDArray[np.int64]


class RowFailures:
    """Rows that fail when they sample next: row → code of `RowFailure`, until the row leaves."""

    __slots__ = ("_codes", "any")

    def __init__(self) -> None:
        self._codes: dict[int, int] = {}
        self.any = False  # True if there is one; read in each pass

    def set(self, row: int, code: int) -> None:
        """Fail the row with this code; it computes until it samples."""
        self._codes[row] = code
        self.any = True

    def clear(self, row: int) -> None:
        """Forget a row that left."""
        self._codes.pop(row, None)
        self.any = bool(self._codes)

    def put_into(self, rows: NDArray[np.int32], failure: torch.Tensor) -> None:
        """Write the codes of sampling `rows` into their column `failure` [rows], over codes of the sampler."""
        for place, row in enumerate(rows.tolist()):
            if row in self._codes:
                failure[place] = self._codes[row]


class Step:
    """One pass over R rows and T tokens. Features read all of it, and change fields marked *.

    `output` is the scheduler's, `inputs` its flat columns, `token_ids` i64[T] on the device. `model_inputs`*: the same,
    or embeddings [T, H]. `positions`* i64[T], or i64[3, T]. `lengths`* i64[T] and `last_seen`* i64[T]: as
    `ForwardPlans.lengths` and `AttentionBatch.last_seen`. `prompt_tokens`*: (row's place in the step, indices of its
    tokens i64[n]) whose logits are computed besides those of sampling tokens. `pair_starts`* i64[S]: place of the
    second text in the prompt of each sampling row, 0 without one. A step without rows has no tokens.

    `is_part`: some tokens of a pass, which is sampled as a whole later.

    After the forward pass, `logits`* [S, V] are those of the sampling tokens, or vectors [S, D] of their prompts where
    the model pools, `prompt_logits` [P, V] of `prompt_tokens`, and `hidden` [S, H] normalised hidden states of the
    sampling tokens, if a feature needs them. `sampling`: the S sampling rows. After sampling, `sampled` holds their
    tokens, None if there are none; a forward pass that samples by itself sets it. A pass that `verifies` drafts has
    logits of all T tokens, and its tokens in `verification`. `prompts`*: results for prompts. `pooled`*: row → vector
    f32[D], None where no row has one.
    """

    __slots__ = (
        "buffers", "can_prune", "hidden", "inputs", "is_part", "last_seen", "lengths", "logits", "model_inputs",
        "output", "pair_starts", "pooled", "positions", "prepared", "prompt_logits", "prompt_tokens", "prompts",
        "sampled", "sampling", "token_ids", "verification", "verifies",
    )  # fmt: skip

    token_ids: torch.Tensor
    model_inputs: torch.Tensor
    logits: torch.Tensor
    prompt_logits: torch.Tensor
    sampling: SampleStep
    verification: Verification
    pair_starts: I64

    def __init__(
        self,
        output: SchedulerOutput,
        inputs: StepInputs,
        buffers: StepBuffers,
        *,
        verifies: bool = False,
    ) -> None:
        self.output = output
        self.inputs = inputs
        self.positions: I64 = inputs.positions.astype(np.int64)
        self.buffers = buffers
        self.verifies = verifies
        self.can_prune = False
        self.is_part = False
        self.prompt_tokens: list[tuple[int, I64]] = []
        self.lengths: torch.Tensor | None = None
        self.last_seen: I64 | None = None
        self.hidden: torch.Tensor | None = None
        self.sampled: Sampled | None = None
        self.prompts: list[PromptPart] = []
        self.pooled: dict[int, NDArray[np.float32]] | None = None
        self.prepared: list[int] = []

    @property
    def kept(self) -> I64 | None:
        """Indices of the tokens with logits, sampling ones first; None for all T in order."""
        inputs = self.inputs
        if self.verifies:
            return None
        last = inputs.query_start_loc[1:][inputs.samples].astype(np.int64) - 1
        if self.prompt_tokens:
            return np.concatenate([last, *(tokens for _, tokens in self.prompt_tokens)])
        return None if len(last) == len(inputs.token_ids) else last

    @property
    def is_pruned(self) -> bool:
        """True if only sampling tokens reach the end of the last layer."""
        if not self.can_prune or self.verifies or self.prompt_tokens:
            return False
        inputs = self.inputs
        return int(np.count_nonzero(inputs.samples)) < len(inputs.token_ids)

    def accepted(self) -> tuple[NDArray[np.int32], I64]:
        """The tokens that the pass added: row of each, i32[N], and its line of `logits` and `hidden`, i64[N]; the
        tokens of a row follow each other.
        """
        if not self.verifies:
            return self.sampling.row, np.arange(len(self.sampling.row))
        made = self.verification
        count = made.count
        before = np.repeat(np.cumsum(count) - count, count)
        number = np.arange(int(count.sum())) - before
        return np.repeat(made.row, count), np.repeat(made.first, count) + number

    def split_logits(self, logits: torch.Tensor) -> None:
        """Store `logits` of the tokens `kept`, including prompt tokens."""
        count = int(np.count_nonzero(self.inputs.samples))
        self.logits, self.prompt_logits = logits[:count], logits[count:]

    def join(self, parts: Sequence[Step]) -> None:
        """Merge the results of all parts of the pass, in order."""
        self.logits = torch.cat([part.logits for part in parts])
        prompt_logits = [part.prompt_logits for part in parts if part.prompt_tokens]
        if prompt_logits:
            self.prompt_logits = torch.cat(prompt_logits)
        hidden = [part.hidden for part in parts if part.hidden is not None]
        if hidden:
            self.hidden = torch.cat(hidden)

    def part(self, begin: int, end: int) -> Step:
        """The pass over the tokens [begin, end) alone."""
        inputs = part_of(self.inputs, begin, end)
        part = Step(self.output, inputs, self.buffers, verifies=self.verifies)
        part.token_ids = part.model_inputs = self.token_ids[begin:end]
        part.can_prune = self.can_prune
        part.is_part = True
        return part


def part_of(inputs: StepInputs, begin: int, end: int) -> StepInputs:
    """Return the inputs of the tokens [begin, end) of a step, as a separate step."""
    begins = inputs.query_start_loc[:-1]
    ends = inputs.query_start_loc[1:]
    places = np.flatnonzero((ends > begin) & (begins < end))
    begins = begins[places]
    ends = ends[places]
    first = np.maximum(begins, begin)
    last = np.minimum(ends, end)
    part = StepInputs.__new__(StepInputs)
    part.row = inputs.row[places]
    part.num_tokens = last - first
    part.start = inputs.start[places] + (first - begins)
    part.seq_lens = inputs.seq_lens[places] - (ends - last)
    part.samples = inputs.samples[places] & (last == ends)
    part.query_start_loc = np.append(first, end).astype(np.int32) - np.int32(begin)
    part.positions = inputs.positions[begin:end]
    part.token_ids = inputs.token_ids[begin:end]
    part.token_row = inputs.token_row[begin:end]
    return part
