"""What each row wants from the sampler, as columns by row, written once when the row enters. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenonry_worker_torch.sampler.randomness import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow

NONE = -1
COLDEST = 1e-5  # a temperature below is greedy: dividing by it would overflow


class SamplingColumns:
    """By row: temperature, top_p, min_p f32; top_k i32 (0: all); seed u64; logprobs, prompt_logprobs i32 (−1: none).

    `is_greedy` and `is_processed` say whether a row takes the maximum, and whether any processor changes its logits;
    `is_plain` rows need an argmax and nothing else.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, engine_seed: int = 0) -> None:
        self.vocab_size, self._engine_seed = vocab_size, engine_seed
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.seed = np.zeros(max_num_seqs, np.uint64)
        self.logprobs = np.full(max_num_seqs, NONE, np.int32)
        self.prompt_logprobs = np.full(max_num_seqs, NONE, np.int32)
        self.is_greedy = np.ones(max_num_seqs, np.bool_)
        self.is_processed = np.zeros(max_num_seqs, np.bool_)
        self.is_plain = np.ones(max_num_seqs, np.bool_)

    def enter(self, new: NewRow, *, is_processed: bool) -> None:
        """Write the columns of a row that starts or comes back."""
        row, wants = new.row, new.sampling
        self.temperature[row] = wants.temperature
        self.top_p[row], self.min_p[row] = wants.top_p, wants.min_p
        self.top_k[row] = 0 if wants.top_k <= 0 or wants.top_k >= self.vocab_size else wants.top_k
        self.seed[row] = self._seed(new)
        self.logprobs[row] = (
            NONE if wants.logprobs is None else min(wants.logprobs, self.vocab_size)
        )
        self.prompt_logprobs[row] = (
            NONE if wants.prompt_logprobs is None else min(wants.prompt_logprobs, self.vocab_size)
        )
        self.is_greedy[row] = wants.temperature < COLDEST
        self.is_processed[row] = is_processed
        self.is_plain[row] = self.is_greedy[row] and not is_processed and wants.logprobs is None

    def _seed(self, new: NewRow) -> np.uint64:
        """The request's seed; one that came without is told apart by its handle."""
        if new.sampling.seed is not None:
            return np.uint64(new.sampling.seed % 2**64)
        base = np.array([(self._engine_seed * 2**32 + new.handle) % 2**64], np.uint64)
        with np.errstate(over="ignore"):
            return np.uint64(mix(base)[0])

    def needs_prompt_logprobs(self, rows: NDArray[np.int32]) -> bool:
        """Whether any of the rows wants log-probabilities of its prompt."""
        return bool((self.prompt_logprobs[rows] >= 0).any())
