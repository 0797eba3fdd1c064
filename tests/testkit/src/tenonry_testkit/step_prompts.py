"""Part of the conformance suite for all layers of steps with prompts, in bfloat16. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tenonry_testkit.step_formulas import rms_norm
from tenonry_testkit.step_layers import BLOCK_SIZES, assert_close, layer_formula
from tenonry_testkit.step_parts import attention_parts, layer_parts, paged_keys
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import PromptParts
from tenonry_torch_base.paged_attention import Chunks

if TYPE_CHECKING:
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.step_kernels import LayerParts


class PromptShape(NamedTuple):
    """Shape of a step: `count` rows of up to `longest` tokens, and of its layers."""

    count: int
    longest: int
    block_size: int
    kv_heads: int
    sharing: int
    size: int
    hidden: int
    window: int
    is_normalised: bool
    has_bias: bool


SHAPES = st.builds(
    PromptShape,
    count=st.integers(1, 5),
    longest=st.integers(1, 90),
    block_size=BLOCK_SIZES,
    kv_heads=st.integers(1, 2),
    sharing=st.integers(1, 3),
    size=st.sampled_from([4, 24, 32, 64]),
    hidden=st.sampled_from([32, 46, 64]),
    window=st.sampled_from([0, 1, 17]),
    is_normalised=st.booleans(),
    has_bias=st.booleans(),
)


# A key of its second layer is a tenth as long as others before its norm, which magnifies rounding by 15.
TINY_KEY = PromptShape(4, 40, 48, 1, 3, 4, 32, 0, is_normalised=True, has_bias=False)


class PromptCase(NamedTuple):
    """A step, its layers, and the K/V of each."""

    layers: list[LayerParts]
    weights: list[dict[str, torch.Tensor]]
    chunks: Chunks
    keys: PagedKeys
    blocks: list[torch.Tensor]
    hidden: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def prompt_case(shape: PromptShape, num_layers: int) -> PromptCase:
    """Return a case of random numbers. A row gains one or more tokens, after the blocks that it shares with others."""
    layers = []
    weights = []
    for number in range(num_layers):
        attention = attention_parts(
            shape.kv_heads,
            shape.sharing,
            shape.size,
            is_gated=False,
            is_normalised=shape.is_normalised,
            window=shape.window if number == 0 else 0,
        )
        parts, exact = layer_parts(attention, shape.hidden, 64, has_bias=shape.has_bias)
        layers.append(parts)
        weights.append(exact)
    keys = paged_keys(attention, shape.count, shape.longest, shape.block_size)
    shared = (int(keys.lengths.min()) - 1) // shape.block_size * shape.block_size
    most = keys.lengths - shared
    counts = (torch.rand(shape.count) * most).long() + 1
    counts[torch.rand(shape.count) < 0.3] = 1
    tokens = int(counts.sum())
    rotated = 2 * (tokens % (shape.size // 2 + 1))
    angles = torch.rand(tokens, 1, rotated) * 6
    return PromptCase(
        layers,
        weights,
        Chunks(counts.cumsum(0) - counts, counts),
        keys,
        [
            torch.where(keys.blocks.isnan(), keys.blocks, torch.randn_like(keys.blocks))
            for _ in layers
        ],
        torch.randn(tokens, shape.hidden).bfloat16(),
        angles.cos().bfloat16(),
        angles.sin().bfloat16(),
    )


def prompt_formula(case: PromptCase) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Formula in float64 except for values between layers and in `blocks`: token by token.

    Also returns, by layer, the amplification of a layer's input rounding errors in each vector of `blocks`.
    """
    hidden = case.hidden
    gains = []
    for parts, weights, blocks in zip(case.layers, case.weights, case.blocks, strict=True):
        made = torch.empty_like(hidden, dtype=torch.float64)
        gain = torch.ones(blocks.shape[:3], dtype=torch.float64)
        for row, length in enumerate(case.keys.lengths.tolist()):
            begin = int(case.chunks.begins[row])
            count = int(case.chunks.counts[row])
            for number in range(count):
                token = slice(begin + number, begin + number + 1)
                keys = case.keys._replace(
                    blocks=blocks,
                    table=case.keys.table[row : row + 1],
                    lengths=torch.tensor([length - count + number + 1]),
                )
                cos, sin = (each[token].double() for each in (case.cos, case.sin))
                made[token] = layer_formula(parts, weights, hidden[token], cos, sin, keys)
                block, place = divmod(length - count + number, blocks.shape[2])
                of_keys = gain[int(case.keys.table[row, block]), : parts.attention.kv_heads, place]
                of_keys[:] = key_gain(parts, weights["projection"], hidden[token])
        hidden = made.bfloat16()
        gains.append(gain)
    return made, gains


def key_gain(parts: LayerParts, projection: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Condition of the keys of one token [kv_heads], at least 1: a normed head is divided by its root mean square,
    which magnifies the rounding of its products.
    """
    attention = parts.attention
    if attention.norm_weight is None:
        return torch.ones(attention.kv_heads, dtype=torch.float64)
    products = projection * rms_norm(hidden.double(), parts.norm_weight, parts.norm_eps)
    begin = attention.heads * attention.size
    of_keys = products[begin : begin + attention.kv_heads * attention.size]
    heads = of_keys.unflatten(0, (-1, attention.size))  # [kv_heads, size, inputs]
    scale = heads.sum(-1).square().mean(-1).sqrt()
    return (heads.norm(dim=-1).amax(-1) / scale).clamp(min=1)


class PromptSuite(KernelSuite):
    """Kernels for layers of steps with prompts, compared with the formula for one token."""

    @EXAMPLES
    @given(SEEDS, SHAPES, st.integers(1, 2))
    @example(1538447, TINY_KEY, 2)
    def test_prompts_are_their_formula(self, seed: int, shape: PromptShape, num_layers: int):
        torch.manual_seed(seed)
        case = prompt_case(shape, num_layers)
        exact = case._replace(blocks=[each.clone() for each in case.blocks])
        kept = case.hidden.clone()
        kernel = self.offered(PromptParts([self.offered(each) for each in case.layers]))
        made = kernel(case.hidden, case.cos, case.sin, case.chunks, case.keys, case.blocks)
        wanted_hidden, gains = prompt_formula(exact)
        assert_close(made, wanted_hidden)
        assert torch.equal(case.hidden, kept)
        for got, wanted, gain in zip(case.blocks, exact.blocks, gains, strict=True):
            assert torch.equal(got.isnan(), wanted.isnan())  # nothing is written beyond a row
            error = (got.double() - wanted.double()).nan_to_num() / gain[..., None]
            near = wanted.nan_to_num().double()
            assert_close((near + error).bfloat16(), near)

    def test_prompts_pass_so_many_layers_as_have_blocks(self):
        torch.manual_seed(2)
        shape = PromptShape(3, 40, 16, 2, 2, 32, 64, 0, is_normalised=True, has_bias=False)
        case = prompt_case(shape, 2)
        layers = [self.offered(each) for each in case.layers]
        both = self.offered(PromptParts(layers))
        one = self.offered(PromptParts(layers[:1]))
        others = [each.clone() for each in case.blocks]
        wanted = one(case.hidden, case.cos, case.sin, case.chunks, case.keys, others[:1])
        made = both(case.hidden, case.cos, case.sin, case.chunks, case.keys, case.blocks[:1])
        assert torch.equal(made, wanted)
        assert torch.equal(case.blocks[1].view(torch.int16), others[1].view(torch.int16))

    @EXAMPLES
    @given(SEEDS, SHAPES, st.integers(1, 2))
    def test_prompts_go_on_with_the_last_tokens_that_they_are_told(
        self, seed: int, shape: PromptShape, num_layers: int
    ):
        torch.manual_seed(seed)
        case = prompt_case(shape, num_layers)
        others = [each.clone() for each in case.blocks]
        kernel = self.offered(PromptParts([self.offered(each) for each in case.layers]))
        given = (case.hidden, case.cos, case.sin, case.chunks, case.keys)
        wanted = kernel(*given, others)
        ends = case.chunks.begins + case.chunks.counts - 1
        last = ends[torch.rand(shape.count) < 0.6]
        made = kernel(*given, case.blocks, last)
        assert made.shape == (len(last), shape.hidden)
        if len(last):
            assert_close(made, wanted[last].double())
        for got, whole in zip(case.blocks, others, strict=True):
            assert torch.equal(got.view(torch.int16), whole.view(torch.int16))

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_prompts_keep_what_is_not_a_number_to_its_row(self, bad: float):
        torch.manual_seed(3)
        shape = PromptShape(4, 70, 16, 2, 2, 32, 64, 0, is_normalised=True, has_bias=False)
        case = prompt_case(shape, 2)
        kernel = self.offered(PromptParts([self.offered(each) for each in case.layers]))
        others = [each.clone() for each in case.blocks]
        wanted = kernel(case.hidden, case.cos, case.sin, case.chunks, case.keys, others)
        begin = int(case.chunks.begins[1])
        spoilt = torch.zeros(len(case.hidden), dtype=torch.bool)
        spoilt[begin : begin + int(case.chunks.counts[1])] = True
        hidden = case.hidden.clone()
        hidden[begin, 5] = bad
        made = kernel(hidden, case.cos, case.sin, case.chunks, case.keys, case.blocks)
        assert torch.equal(made[~spoilt], wanted[~spoilt])
        assert not made[spoilt].isfinite().all()

    def test_prompts_of_many_tokens_are_those_of_few(self):
        """One row, in one step and in several, with more tokens than a kernel's chunk."""
        torch.manual_seed(4)
        shape = PromptShape(1, 700, 16, 2, 2, 32, 64, 0, is_normalised=True, has_bias=False)
        case = prompt_case(shape, 2)
        count = 600
        keys = case.keys._replace(
            table=torch.arange(44).int().view(1, -1), lengths=torch.tensor([count])
        )
        hidden = torch.randn(count, shape.hidden).bfloat16()
        angles = torch.rand(count, 1, 32) * 6
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        kernel = self.offered(PromptParts([self.offered(each) for each in case.layers]))
        blocks = [torch.zeros_like(each) for each in case.blocks]
        others = [each.clone() for each in blocks]
        whole = Chunks(torch.tensor([0]), torch.tensor([count]))
        made = kernel(hidden, cos, sin, whole, keys, blocks)
        parts = []
        for begin in range(0, count, 150):
            chunk = slice(begin, begin + 150)
            seen = keys._replace(lengths=torch.tensor([begin + 150]))
            one = Chunks(torch.tensor([0]), torch.tensor([150]))
            parts.append(kernel(hidden[chunk], cos[chunk], sin[chunk], one, seen, others))
        assert_close(made, torch.cat(parts).double())
