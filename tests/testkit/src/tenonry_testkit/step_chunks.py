"""The part of the conformance suite that is about attention of prompts in bfloat16. Test process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_layers import HEADS, assert_close, paged_formula
from tenonry_testkit.step_parts import attention_parts, paged_keys
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.step_kernels import Chunks

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import PagedKeys


def chunks_of(keys: PagedKeys) -> tuple[Chunks, torch.Tensor, PagedKeys]:
    """Some of the last tokens of each row, with a query of somebody else before them. Where those of the rows are, and
    what each of them sees, as if it were a row.
    """
    counts = (torch.rand(len(keys.lengths)) * keys.lengths).long() + 1
    before = counts.cumsum(0) - counts
    row = torch.arange(len(counts)).repeat_interleave(counts)
    within = torch.arange(len(row)) - before[row]
    begins = before + torch.arange(len(counts)) + 1
    seen = (keys.lengths - counts)[row] + within + 1
    each = keys._replace(
        table=keys.table[row],
        lengths=seen,
    )
    return Chunks(begins, counts), begins[row] + within, each


class ChunkSuite(KernelSuite):
    """Kernels for rows with several queries, against the formula for one."""

    @EXAMPLES
    @given(
        SEEDS,
        st.integers(1, 4),
        st.integers(1, 3),
        st.sampled_from([1, 2, 3, 5, 16]),
        HEADS,
        st.integers(1, 200),
        st.sampled_from([1, 4, 16, 48]),
        st.sampled_from([0, 1, 17, 100]),
    )
    def test_chunk_attention_is_its_formula(
        self,
        seed: int,
        count: int,
        kv_heads: int,
        sharing: int,
        size: int,
        longest: int,
        block_size: int,
        window: int,
    ):
        torch.manual_seed(seed)
        parts = attention_parts(kv_heads, sharing, size, is_gated=False, is_normalised=False)
        parts = dataclasses.replace(parts, window=window)
        kernel = self.offered("chunk_attention", parts)
        keys = paged_keys(
            parts,
            count,
            longest,
            block_size,
        )
        chunks, place, each = chunks_of(keys)
        query = torch.randn(int(place[-1]) + 3, parts.heads, size).bfloat16()
        out = torch.full_like(query, 7.0)
        kernel(
            query,
            chunks,
            keys,
            out,
        )
        assert_close(out[place], paged_formula(parts, query[place].double(), each))
        out[place] = 7.0
        assert bool((out == 7.0).all())

    def test_chunk_attention_keeps_what_is_not_a_number_to_its_row(self):
        torch.manual_seed(1)
        parts = attention_parts(
            2,
            2,
            16,
            is_gated=False,
            is_normalised=False,
        )
        kernel = self.offered("chunk_attention", parts)
        keys = paged_keys(
            parts,
            3,
            20,
            4,
        )
        chunks, place, each = chunks_of(keys)
        query = torch.randn(int(place[-1]) + 1, parts.heads, 16).bfloat16()
        wanted = paged_formula(parts, query[place].double(), each)
        first = int(chunks.begins[1])
        wrong = slice(first, first + int(chunks.counts[1]))
        query[wrong] = float("nan")
        out = torch.zeros_like(query)
        kernel(
            query,
            chunks,
            keys,
            out,
        )
        assert out[wrong].isnan().all()
        is_other = (place < wrong.start) | (place >= wrong.stop)
        assert_close(out[place[is_other]], wanted[is_other])
