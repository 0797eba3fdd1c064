"""The sampling parameters of each row, as columns by row, written once when the row enters. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenonry_torch_base.sampler.randomness import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow

NONE = -1
COLDEST = 1e-5  # a temperature below is greedy: dividing by it would overflow


class SamplingColumns:
    """Sampling parameters by row: temperature, top_p, min_p f32; top_k i32 (0: all); seed u64; logprobs,
    prompt_logprobs i32 (−1: none).

    `has_grammar`: rows with structured output. `is_greedy`: rows that choose the maximum. `is_processed`: rows whose
    logits a processor changes. `is_plain`: rows that need only an argmax. `sole` i32: index of the processor of rows
    that need only that one and an argmax after it; −1 for other rows.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, engine_seed: int = 0) -> None:
        self.vocab_size = vocab_size
        self._engine_seed = engine_seed
        self.temperature = np.zeros(max_num_seqs, np.float32)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.top_k = np.zeros(max_num_seqs, np.int32)
        self.seed = np.zeros(max_num_seqs, np.uint64)
        self.logprobs = np.full(max_num_seqs, NONE, np.int32)
        self.prompt_logprobs = np.full(max_num_seqs, NONE, np.int32)
        self.has_grammar = np.zeros(max_num_seqs, np.bool_)
        self.is_greedy = np.ones(max_num_seqs, np.bool_)
        self.is_processed = np.zeros(max_num_seqs, np.bool_)
        self.is_plain = np.ones(max_num_seqs, np.bool_)
        self.sole = np.full(max_num_seqs, NONE, np.int32)

    def enter(self, new: NewRow, processors: list[int]) -> None:
        """Write the columns of a new or returning row; `processors`: places of its processors."""
        is_processed = bool(processors)
        row = new.row
        sampling = new.sampling
        self.temperature[row] = sampling.temperature
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        is_cut = 0 < sampling.top_k < self.vocab_size
        self.top_k[row] = sampling.top_k if is_cut else 0
        self.seed[row] = self._seed(new)
        self.logprobs[row] = self._count(sampling.logprobs)
        self.prompt_logprobs[row] = self._count(sampling.prompt_logprobs)
        self.has_grammar[row] = sampling.structured_output is not None
        is_greedy = sampling.temperature < COLDEST
        has_logprobs = sampling.logprobs is not None
        self.is_greedy[row] = is_greedy
        self.is_processed[row] = is_processed
        is_simple = is_greedy and not has_logprobs
        self.is_plain[row] = is_simple and not is_processed
        self.sole[row] = processors[0] if is_simple and len(processors) == 1 else NONE

    def _seed(self, new: NewRow) -> np.uint64:
        """The request's seed; without one, a seed made from the engine's and the request's handle."""
        seed = new.sampling.seed
        if seed is not None:
            return np.uint64(seed % 2**64)
        counter = self._engine_seed * 2**32 + new.handle
        base = np.array([counter % 2**64], np.uint64)
        with np.errstate(over="ignore"):
            mixed = mix(base)
        return np.uint64(mixed[0])

    def _count(self, wanted: int | None) -> int:
        """Number of log-probabilities per position in addition to the chosen token's."""
        if wanted is None:
            return NONE
        return min(wanted, self.vocab_size)

    def needs_prompt_logprobs(self, rows: NDArray[np.int32]) -> bool:
        """Return True if any of the rows requests log-probabilities of its prompt."""
        return bool((self.prompt_logprobs[rows] >= 0).any())
