"""Part of the conformance suite for multi-token steps, in bfloat16. Test process."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from tenonry_testkit.step_formulas import rms_norm
from tenonry_testkit.step_layers import layer_formula
from tenonry_testkit.step_parts import attention_parts, blocked_weight, layer_parts, paged_keys
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.paged_attention import PagedKeys
from tenonry_torch_base.round_kernel import RoundEnds, RoundTokens
from tenonry_torch_base.step_kernels import LayerParts, RoundParts

HIDDEN = 64
SIZE = 32
BLOCK_SIZE = 16
VOCABULARY = 80
LONGEST = 40  # before the step
MOST = 20
NEAR = 0.06  # of the largest logit: tolerance of rounding for the chosen one


class RoundCase(NamedTuple):
    """A small model, the K/V of its layers, and rows."""

    layers: list[LayerParts]
    weights: list[dict[str, torch.Tensor]]
    parts: RoundParts
    head: torch.Tensor
    keys: PagedKeys
    blocks: list[torch.Tensor]
    token_ids: torch.Tensor

    def copied(self) -> RoundCase:
        return self._replace(blocks=[each.clone() for each in self.blocks])


def round_case(count: int, num_layers: int) -> RoundCase:
    """Return a case of random numbers; rows have their own blocks for all tokens of the step."""
    layers = []
    weights = []
    for _ in range(num_layers):
        attention = attention_parts(2, 2, SIZE, is_gated=False, is_normalised=True)
        made, exact = layer_parts(attention, HIDDEN, 64, has_bias=False)
        layers.append(made)
        weights.append(exact)
    width = -(-(LONGEST + MOST) // BLOCK_SIZE)
    lengths = torch.randint(1, LONGEST + 1, (count,))
    table = torch.randperm(count * width).view(count, width)
    shape = paged_keys(attention, 1, width * BLOCK_SIZE, BLOCK_SIZE).blocks.shape
    blocks = [torch.full((count * width, *shape[1:]), float("nan")).bfloat16() for _ in layers]
    for row, length in enumerate(lengths.tolist()):
        for token in range(length):
            place = (int(table[row, token // BLOCK_SIZE]), slice(None), token % BLOCK_SIZE)
            for each in blocks:
                each[place] = torch.randn(4, SIZE).bfloat16()
    head, exact = blocked_weight(VOCABULARY, HIDDEN, has_bias=False)
    angles = torch.rand(LONGEST + MOST, SIZE) * 6
    parts = RoundParts(
        [],
        torch.randn(VOCABULARY, HIDDEN).bfloat16(),
        angles.cos().bfloat16(),
        angles.sin().bfloat16(),
        torch.rand(HIDDEN) + 0.5,
        1e-6,
        head,
    )
    keys = PagedKeys(blocks[0], table.int().contiguous(), lengths)
    token_ids = torch.randint(0, VOCABULARY, (count,)).int()
    return RoundCase(layers, weights, parts, exact, keys, blocks, token_ids)


def logits_formula(case: RoundCase, row: int, token: int, length: int) -> torch.Tensor:
    """Return logits after a row's token at `length` - 1, in float64 except values between layers; writes its K/V."""
    hidden = case.parts.embedding[token][None]
    cos, sin = (
        each[length - 1].view(1, 1, -1).double() for each in (case.parts.cos, case.parts.sin)
    )
    for parts, weights, blocks in zip(case.layers, case.weights, case.blocks, strict=True):
        keys = PagedKeys(blocks, case.keys.table[row : row + 1], torch.tensor([length]))
        hidden = layer_formula(parts, weights, hidden, cos, sin, keys).bfloat16()
    normed = rms_norm(hidden.double(), case.parts.norm_weight, case.parts.norm_eps)
    logits: torch.Tensor = (normed @ case.head.t())[0]
    return logits


def assert_chosen(case: RoundCase, made: RoundTokens, row: int) -> None:
    """Check that each token of a row has the largest logit after its predecessors, up to rounding."""
    token = int(case.token_ids[row])
    length = int(case.keys.lengths[row])
    for number in range(int(made.counts[row])):
        logits = logits_formula(case, row, token, length + number)
        token = int(made.token_ids[row, number])
        assert logits[token] >= logits.max() - NEAR * logits.abs().max()


def open_ends(count: int, most: int) -> RoundEnds:
    return RoundEnds(most, torch.full((count, 2), -1), torch.zeros(count, dtype=torch.int64))


class RoundSuite(KernelSuite):
    """Kernels for several passes of a model, compared with the formula of a layer for one token."""

    def run_round(self, case: RoundCase, ends: RoundEnds) -> RoundTokens:
        layers = [self.offered(each) for each in case.layers]
        kernel = self.offered(dataclasses.replace(case.parts, layers=layers))
        made: RoundTokens = kernel(case.token_ids, case.keys, case.blocks, ends)
        return made

    @EXAMPLES
    @given(SEEDS, st.integers(1, 5), st.integers(1, 2), st.integers(1, MOST))
    def test_rounds_choose_the_largest_logits(
        self, seed: int, count: int, num_layers: int, most: int
    ):
        torch.manual_seed(seed)
        case = round_case(count, num_layers)
        exact = case.copied()
        made = self.run_round(case, open_ends(count, most))
        assert made.counts.tolist() == [most] * count
        assert not made.failed.any()
        for row in range(count):
            assert_chosen(exact, made, row)
        # Nothing is written after the last token but one, the last computed one.
        for got, wanted in zip(case.blocks, exact.blocks, strict=True):
            assert torch.equal(got.isnan(), wanted.isnan())

    def test_rounds_end_with_the_tokens_that_end_rows(self):
        torch.manual_seed(1)
        case = round_case(4, 2)
        free = self.run_round(case.copied(), open_ends(4, MOST))
        stop_ids = torch.full((4, 2), -1)
        stop_ids[0, 1] = free.token_ids[0, 6]
        stop_ids[2, 0] = free.token_ids[2, 0]
        stop_ids[3] = free.token_ids[3, 3]
        least = torch.tensor([0, 0, 1, 9])
        made = self.run_round(case.copied(), RoundEnds(MOST, stop_ids, least))
        for row in range(4):
            ids = free.token_ids[row].tolist()
            ends = [
                number + 1
                for number, token in enumerate(ids)
                if token in stop_ids[row].tolist() and number >= int(least[row])
            ]
            count = ends[0] if ends else MOST
            assert int(made.counts[row]) == count
            assert made.token_ids[row, :count].tolist() == ids[:count]

    def test_rounds_fail_rows_without_numbers_alone(self):
        torch.manual_seed(2)
        case = round_case(3, 1)
        free = self.run_round(case.copied(), open_ends(3, 6))
        first = int(case.keys.table[1, 0])
        case.blocks[0][first] = float("nan")
        made = self.run_round(case, open_ends(3, 6))
        assert made.failed.tolist() == [0, 1, 0]
        assert made.counts.tolist() == [6, 0, 6]
        assert torch.equal(made.token_ids[[0, 2]], free.token_ids[[0, 2]])

    def test_rounds_take_the_first_of_equal_logits_and_negative_ones(self):
        torch.manual_seed(3)
        case = round_case(2, 1)
        equal, _ = blocked_weight(VOCABULARY, HIDDEN, has_bias=False)
        equal.blocks.zero_()
        for biases, wanted in (
            ([1.0, 2.0, 2.0], 1),
            ([-3.0, -2.0, -2.5], 1),
            ([0.0, -0.0, 0.0], 0),
            ([-1.0, 0.0, 0.0], 1),
        ):
            bias = torch.full((VOCABULARY,), -9.0)
            bias[:3] = torch.tensor(biases)
            parts = dataclasses.replace(
                case.parts,
                head=type(equal)(outputs=VOCABULARY, inputs=HIDDEN, blocks=equal.blocks, bias=bias),
            )
            made = self.run_round(case._replace(parts=parts).copied(), open_ends(2, 3))
            assert made.token_ids.tolist() == [[wanted] * 3] * 2
