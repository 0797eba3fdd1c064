"""Part of the conformance suite for bfloat16: linear layers, attention over blocks, whole layers. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tenonry_testkit.step_formulas import rms_norm, turned_heads
from tenonry_testkit.step_parts import (
    PagedShape,
    attention_parts,
    blocked_weight,
    layer_parts,
    paged_case,
    paged_keys,
    spoilt_layer,
)
from tenonry_testkit.step_suite import COUNTS, EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import LinearParts, PagedAttentionParts, StackParts

if TYPE_CHECKING:
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.step_kernels import AttentionParts, LayerParts

# Some processors multiply 16 pairs of inputs in one instruction, of 16 rows.
PAIRS = st.one_of(st.integers(1, 40), st.sampled_from([16, 32, 48]))
LAYER_COUNTS = st.one_of(COUNTS, st.sampled_from([16, 17, 33]))
# Half of a layer's hidden size: with two or three numbers the norm can be near 0, which magnifies rounding.
HALVES = st.one_of(st.integers(8, 40), st.sampled_from([16, 32]))
WINDOWS = st.sampled_from([0, 1, 3, 17])
HEADS = st.sampled_from([2, 6, 16, 24, 32, 40, 64, 128])
# Of heads normed after a rounded product: the norm of two numbers can be near 0.
NORMED_HEADS = HEADS.filter(lambda size: size > 2)
BLOCK_SIZES = st.sampled_from([1, 4, 16, 48])


def paged_shapes(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[PagedShape]:
    """Shapes of decoding rows, with heads of these sizes."""
    return st.builds(
        PagedShape,
        count=COUNTS,
        kv_heads=st.integers(1, 3),
        sharing=st.integers(1, 3),
        size=sizes,
        longest=st.integers(1, 100),
        block_size=BLOCK_SIZES,
        window=WINDOWS,
    )


def assert_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare up to bfloat16 rounding, including that of intermediate values."""
    assert got.shape == wanted.shape
    assert got.dtype == torch.bfloat16
    largest = max(1.0, float(wanted.abs().max()))
    torch.testing.assert_close(got.double(), wanted, rtol=3e-2, atol=2e-2 * largest)


def paged_formula(parts: AttentionParts, query: torch.Tensor, keys: PagedKeys) -> torch.Tensor:
    """Compute `query` [R, heads, size] in float64, over the contents of the blocks."""
    block_size = keys.blocks.shape[2]
    out = torch.empty_like(query)
    for row, length in enumerate(keys.lengths.tolist()):
        first = max(0, length - parts.window) if parts.window else 0
        tokens = range(first, length)
        held = [
            keys.blocks[int(keys.table[row, token // block_size]), :, token % block_size].double()
            for token in tokens
        ]
        key, value = torch.stack(held, 1).chunk(2)
        sharing = parts.heads // parts.kv_heads
        key = key.repeat_interleave(sharing, 0)
        value = value.repeat_interleave(sharing, 0)
        scores = torch.einsum("hd,htd->ht", query[row], key) * parts.scaling
        out[row] = torch.einsum("ht,htd->hd", scores.softmax(1), value)
    return out


def layer_formula(
    parts: LayerParts,
    weights: dict[str, torch.Tensor],
    hidden: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: PagedKeys,
) -> torch.Tensor:
    """Compute the formula in float64; the new keys and values are written, rounded."""
    attention = parts.attention
    x = hidden.double()
    projected = rms_norm(x, parts.norm_weight, parts.norm_eps) @ weights["projection"].t()
    if parts.projection.bias is not None:
        projected = projected + parts.projection.bias.double()
    query, key, value = turned_heads(attention, projected, cos, sin)
    block_size = keys.blocks.shape[2]
    for row, length in enumerate(keys.lengths.tolist()):
        block = int(keys.table[row, (length - 1) // block_size])
        new = torch.cat([key[row], value[row]])
        keys.blocks[block, :, (length - 1) % block_size] = new.bfloat16()
    made = paged_formula(attention, query, keys).flatten(1)
    middle = x + made @ weights["out"].t()
    normed = rms_norm(middle, parts.second_norm_weight, parts.second_norm_eps)
    gate, up = (normed @ weights["gate_up"].t()).chunk(2, -1)
    return middle + (functional.silu(gate) * up) @ weights["down"].t()


class LayerSuite(KernelSuite):
    """Kernels for bfloat16, compared with their formulas."""

    @EXAMPLES
    @given(SEEDS, st.integers(1, 70), PAIRS, st.integers(1, 200), st.booleans(), st.booleans())
    def test_linear_is_its_formula(
        self, seed: int, count: int, pairs: int, outputs: int, has_bias: bool, has_other: bool
    ):
        torch.manual_seed(seed)
        made, exact = blocked_weight(outputs, 2 * pairs, has_bias=has_bias)
        kernel = self.offered(LinearParts(made))
        x = torch.randn(count, 2 * pairs).bfloat16()
        other = torch.randn(count, outputs).bfloat16()
        wanted = x.double() @ exact.t()
        if made.bias is not None:
            wanted = wanted + made.bias.double()
        if has_other:
            wanted = wanted + other.double()
        assert_close(kernel(x, other if has_other else None), wanted)

    def test_linear_of_much_work_is_its_formula(self):
        torch.manual_seed(0)
        made, exact = blocked_weight(4000, 1024, has_bias=True)
        kernel = self.offered(LinearParts(made))
        for count in (1, 7, 65):
            x = torch.randn(count, 1024).bfloat16()
            wanted = x.double() @ exact.t() + made.bias.double()
            assert_close(kernel(x), wanted)

    def test_linear_of_no_rows_is_nothing(self):
        """The head receives no rows if no row of a step samples."""
        made, _ = blocked_weight(100, 64, has_bias=False)
        found = self.offered(LinearParts(made))(torch.empty(0, 64).bfloat16())
        assert found.shape == (0, 100)

    def test_linear_keeps_what_is_not_a_number_to_its_row(self):
        made, exact = blocked_weight(100, 64, has_bias=False)
        kernel = self.offered(LinearParts(made))
        x = torch.randn(9, 64).bfloat16()
        x[4, 5] = float("nan")
        got = kernel(x)
        others = [0, 1, 2, 3, 5, 6, 7, 8]
        assert got[4].isnan().all()
        assert_close(got[others], x[others].double() @ exact.t())

    @EXAMPLES
    @given(SEEDS, paged_shapes(HEADS))
    def test_paged_attention_is_its_formula(self, seed: int, shape: PagedShape):
        torch.manual_seed(seed)
        parts, keys = paged_case(shape)
        kernel = self.offered(PagedAttentionParts(parts))
        query = torch.randn(shape.count, parts.heads, shape.size).bfloat16()
        wanted = paged_formula(parts, query.double(), keys)
        assert_close(kernel(query, keys), wanted)

    @EXAMPLES
    @given(
        SEEDS,
        LAYER_COUNTS,
        HALVES,
        st.integers(1, 2),
        st.integers(1, 3),
        NORMED_HEADS,
        st.integers(1, 3),
        st.integers(1, 40),
        WINDOWS,
        st.booleans(),
        st.booleans(),
    )
    def test_layer_is_its_formula(
        self,
        seed: int,
        count: int,
        pairs: int,
        kv_heads: int,
        sharing: int,
        size: int,
        inner: int,
        longest: int,
        window: int,
        is_normalised: bool,
        has_bias: bool,
    ):
        torch.manual_seed(seed)
        attention = attention_parts(
            kv_heads, sharing, size, is_gated=False, is_normalised=is_normalised, window=window
        )
        parts, weights = layer_parts(attention, 2 * pairs, 64 * inner, has_bias=has_bias)
        kernel = self.offered(parts)
        keys = paged_keys(attention, count, longest, 4)
        before = keys.blocks.clone()
        exact = keys._replace(blocks=keys.blocks.clone())
        hidden = torch.randn(count, 2 * pairs).bfloat16()
        kept = hidden.clone()
        rotated = 2 * (seed % (size // 2 + 1))
        angles = torch.rand(count, 1, rotated) * 6
        cos = angles.cos().bfloat16()
        sin = angles.sin().bfloat16()
        made = kernel(hidden, cos, sin, keys)
        wanted = layer_formula(parts, weights, hidden, cos.double(), sin.double(), exact)
        assert_close(made, wanted)
        assert torch.equal(hidden, kept)
        # The new keys and values, rounded, with everything else unchanged.
        for row, length in enumerate(keys.lengths.tolist()):
            block = int(keys.table[row, (length - 1) // 4])
            new = (block, slice(None), (length - 1) % 4)
            assert_close(keys.blocks[new], exact.blocks[new].double())
            keys.blocks[new] = before[new]
        assert torch.equal(keys.blocks.view(torch.int16), before.view(torch.int16))

    def test_layer_keeps_what_is_not_a_number_to_its_row(self):
        torch.manual_seed(1)
        case = spoilt_layer()
        kernel = self.offered(case.parts)
        exact = case.keys._replace(blocks=case.keys.blocks.clone())
        made = kernel(case.hidden, case.cos, case.sin, case.keys)
        wanted = layer_formula(
            case.parts, case.weights, case.hidden, case.cos.double(), case.sin.double(), exact
        )
        assert not made[1].isfinite().all()
        assert_close(made[[0, 2]], wanted[[0, 2]])

    @EXAMPLES
    @given(
        SEEDS,
        COUNTS,
        st.integers(1, 4),
        HALVES,
        NORMED_HEADS,
        st.integers(1, 40),
        st.lists(WINDOWS, min_size=4, max_size=4),
    )
    def test_stack_is_its_layers(
        self,
        seed: int,
        count: int,
        num_layers: int,
        pairs: int,
        size: int,
        longest: int,
        windows: list[int],
    ):
        """The stack equals its layers one after another, to the last bit, each with its own window and K/V."""
        torch.manual_seed(seed)
        layers = []
        for window in windows[:num_layers]:
            attention = attention_parts(
                2, 2, size, is_gated=False, is_normalised=True, window=window
            )
            parts, _ = layer_parts(attention, 2 * pairs, 64, has_bias=False)
            layers.append(self.offered(parts))
        kernel = self.offered(StackParts(layers))
        keys = paged_keys(attention, count, longest, 4)
        blocks = [torch.randn_like(keys.blocks) for _ in layers]
        singly = [each.clone() for each in blocks]
        hidden = torch.randn(count, 2 * pairs).bfloat16()
        kept = hidden.clone()
        cos, sin = torch.randn(2, count, 1, size).bfloat16()
        made = kernel(hidden, cos, sin, keys, blocks)
        wanted = hidden
        for layer, each in zip(layers, singly, strict=True):
            wanted = layer(wanted, cos, sin, keys._replace(blocks=each))
        assert torch.equal(made, wanted)
        assert torch.equal(hidden, kept)
        for got, each in zip(blocks, singly, strict=True):
            assert torch.equal(got, each)
