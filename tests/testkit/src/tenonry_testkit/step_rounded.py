"""Part of the conformance suite for K/V in 8 bits: attention over blocks and of prompts, whole layers. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_chunks import CHUNK_SHAPES, assert_chunks
from tenonry_testkit.step_layers import (
    HEADS,
    NORMED_HEADS,
    WINDOWS,
    assert_close,
    layer_formula,
    paged_formula,
    paged_shapes,
)
from tenonry_testkit.step_parts import (
    PagedShape,
    attention_parts,
    layer_parts,
    paged_case,
    paged_keys,
    spoilt_layer,
)
from tenonry_testkit.step_suite import COUNTS, EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import ChunkAttentionParts, PagedAttentionParts

if TYPE_CHECKING:
    from tenonry_torch_base.paged_attention import PagedKeys

NUMBERS = 127
SCALE_BYTES = 2
SIZES = st.one_of(HEADS, st.sampled_from([7, 33]))


def kept(vectors: torch.Tensor) -> torch.Tensor:
    """Encode vectors [..., size] in 8 bits: u8[..., size + size % 2 + 2]."""
    size = vectors.shape[-1]
    scale = (vectors.float().abs().amax(-1, keepdim=True) / NUMBERS).bfloat16()
    scale = scale.clamp_min(torch.finfo(torch.bfloat16).tiny)
    numbers = torch.round(vectors.float() / scale.float()).nan_to_num(0).to(torch.int8)
    made = torch.zeros(*vectors.shape[:-1], size + size % 2 + SCALE_BYTES, dtype=torch.uint8)
    made[..., :size] = numbers.view(torch.uint8)
    made[..., -SCALE_BYTES:] = scale.view(torch.uint8)
    return made


def seen(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Decode the values visible to attention, in bfloat16."""
    numbers = blocks[..., :size].view(torch.int8).double()
    scale = blocks[..., -SCALE_BYTES:].contiguous().view(torch.bfloat16).double()
    return (numbers * scale).bfloat16()


def rounded(keys: PagedKeys) -> tuple[PagedKeys, PagedKeys]:
    """Return keys in 8 bits, and their values visible to attention."""
    blocks = kept(keys.blocks)
    exact = seen(blocks, keys.blocks.shape[-1])
    return keys._replace(blocks=blocks), keys._replace(blocks=exact)


class RoundedSuite(KernelSuite):
    """Kernels with support for K/V in 8 bits, compared with the formula over the dequantised values."""

    def rounding(self, parts: Any) -> Any:
        """Return the kernel for these parts, if it reads K and V in 8 bits; skips the test otherwise."""
        if "int8" not in self.made().kept:
            pytest.skip("no kernel reads K and V in 8 bits")
        return self.offered(parts)

    @EXAMPLES
    @given(SEEDS, paged_shapes(SIZES))
    def test_paged_attention_reads_8_bits(self, seed: int, shape: PagedShape):
        torch.manual_seed(seed)
        parts, keys = paged_case(shape)
        kernel = self.rounding(PagedAttentionParts(parts))
        given, exact = rounded(keys)
        query = torch.randn(shape.count, parts.heads, shape.size).bfloat16()
        assert_close(kernel(query, given), paged_formula(parts, query.double(), exact))

    @EXAMPLES
    @given(SEEDS, CHUNK_SHAPES)
    def test_chunk_attention_reads_8_bits(self, seed: int, shape: PagedShape):
        torch.manual_seed(seed)
        parts, keys = paged_case(shape)
        kernel = self.rounding(ChunkAttentionParts(parts))
        given, exact = rounded(keys)
        assert_chunks(kernel, parts, given, exact)

    @EXAMPLES
    @given(
        SEEDS,
        COUNTS,
        st.integers(1, 2),
        st.integers(1, 3),
        NORMED_HEADS,
        st.integers(1, 40),
        WINDOWS,
    )
    def test_layer_writes_8_bits(
        self,
        seed: int,
        count: int,
        kv_heads: int,
        sharing: int,
        size: int,
        longest: int,
        window: int,
    ):
        torch.manual_seed(seed)
        attention = attention_parts(
            kv_heads, sharing, size, is_gated=False, is_normalised=True, window=window
        )
        parts, weights = layer_parts(attention, 32, 64, has_bias=False)
        kernel = self.rounding(parts)
        given, exact = rounded(paged_keys(attention, count, longest, 4))
        before = given.blocks.clone()
        hidden = torch.randn(count, 32).bfloat16()
        angles = torch.rand(count, 1, size // 2 * 2) * 6
        cos = angles.cos().bfloat16()
        sin = angles.sin().bfloat16()
        made = kernel(hidden, cos, sin, given)
        wanted = layer_formula(parts, weights, hidden, cos.double(), sin.double(), exact)
        assert_close(made, wanted)
        for row, length in enumerate(given.lengths.tolist()):
            new = (int(given.table[row, (length - 1) // 4]), slice(None), (length - 1) % 4)
            assert_close(seen(given.blocks[new], size), exact.blocks[new].double())
            largest = given.blocks[new][:, :size].view(torch.int8).abs().amax(1)
            assert (largest == NUMBERS).all()  # all numbers of a byte are used
            given.blocks[new] = before[new]
        assert torch.equal(given.blocks, before)

    def test_layer_keeps_what_is_not_a_number_in_8_bits(self):
        """All elements of such a vector are non-finite for all readers."""
        torch.manual_seed(1)
        case = spoilt_layer()
        kernel = self.rounding(case.parts)
        given, exact = rounded(case.keys)
        made = kernel(case.hidden, case.cos, case.sin, given)
        wanted = layer_formula(
            case.parts, case.weights, case.hidden, case.cos.double(), case.sin.double(), exact
        )
        assert not made[1].isfinite().any()
        assert_close(made[[0, 2]], wanted[[0, 2]])
        last = int(given.lengths[1]) - 1
        written = given.blocks[int(given.table[1, last // 4]), :, last % 4]
        assert not seen(written, 16).isfinite().any()
