"""Part of the conformance suite for prompt attention in bfloat16. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_layers import BLOCK_SIZES, HEADS, assert_close
from tenonry_testkit.step_parts import PagedShape, attention_parts, paged_case, paged_keys
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import ChunkAttentionParts
from tenonry_torch_base.paged_attention import Chunks

if TYPE_CHECKING:
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.step_kernels import AttentionParts


CHUNK_SHAPES = st.builds(
    PagedShape,
    count=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    sharing=st.sampled_from([1, 2, 3, 5, 16]),
    size=HEADS,
    longest=st.integers(1, 200),
    block_size=BLOCK_SIZES,
    window=st.sampled_from([0, 1, 17, 100]),
)


def chunks_of(keys: PagedKeys) -> Chunks:
    """Return some of the last tokens of each row, with a query of another row before them."""
    counts = (torch.rand(len(keys.lengths)) * keys.lengths).long() + 1
    before = counts.cumsum(0) - counts
    begins = before + torch.arange(len(counts)) + 1
    return Chunks(begins, counts)


def chunk_formula(
    parts: AttentionParts, query: torch.Tensor, chunks: Chunks, keys: PagedKeys
) -> torch.Tensor:
    """Compute the formula in float64; 7 for tokens without a query."""
    out = torch.full_like(query.double(), 7.0)
    block_size = keys.blocks.shape[2]
    for row, length in enumerate(keys.lengths.tolist()):
        count = int(chunks.counts[row])
        begin = int(chunks.begins[row])
        token = torch.arange(length)
        position = token[-count:, None]
        is_hidden = token > position
        if parts.window:
            is_hidden |= token <= position - parts.window
        block = keys.table[row, token // block_size].long()
        held = keys.blocks[block, :, token % block_size].double()
        sharing = parts.heads // parts.kv_heads
        key, value = held.repeat_interleave(sharing, 1).chunk(2, 1)
        asked = query[begin : begin + count].double()
        scores = torch.einsum("nhd,thd->hnt", asked, key) * parts.scaling
        scores.masked_fill_(is_hidden, float("-inf"))
        out[begin : begin + count] = torch.einsum("hnt,thd->nhd", scores.softmax(-1), value)
    return out


def assert_chunks(kernel: Any, parts: AttentionParts, keys: PagedKeys, exact: PagedKeys) -> None:
    """Check that a kernel over `keys` matches the formula over `exact`, and leaves queries of other rows unchanged."""
    chunks = chunks_of(keys)
    count = int(chunks.counts.sum()) + len(keys.lengths) + 3
    query = torch.randn(count, parts.heads, parts.size).bfloat16()
    out = torch.full_like(query, 7.0)
    kernel(query, chunks, keys, out)
    assert_close(out, chunk_formula(parts, query, chunks, exact))


class ChunkSuite(KernelSuite):
    """Kernels for rows with several queries, compared with the formula for one."""

    @EXAMPLES
    @given(SEEDS, CHUNK_SHAPES)
    def test_chunk_attention_is_its_formula(self, seed: int, shape: PagedShape):
        torch.manual_seed(seed)
        parts, keys = paged_case(shape)
        kernel = self.offered(ChunkAttentionParts(parts))
        assert_chunks(kernel, parts, keys, keys)

    def test_chunk_attention_keeps_what_is_not_a_number_to_its_row(self):
        torch.manual_seed(1)
        parts = attention_parts(2, 2, 16, is_gated=False, is_normalised=False)
        kernel = self.offered(ChunkAttentionParts(parts))
        keys = paged_keys(parts, 3, 20, 4)
        chunks = chunks_of(keys)
        query = torch.randn(int(chunks.counts.sum()) + 3, parts.heads, 16).bfloat16()
        wanted = chunk_formula(parts, query, chunks, keys)
        first = int(chunks.begins[1])
        wrong = slice(first, first + int(chunks.counts[1]))
        query[wrong] = float("nan")
        out = torch.full_like(query, 7.0)
        kernel(query, chunks, keys, out)
        assert out[wrong].isnan().all()
        out[wrong] = 7.0
        wanted[wrong] = 7.0
        assert_close(out, wanted)
