"""Part of the conformance suite for operations between products, in bfloat16. Test process."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from tenonry_testkit.step_formulas import rms_norm, turned_heads
from tenonry_testkit.step_layers import HEADS, assert_close
from tenonry_testkit.step_parts import attention_parts
from tenonry_testkit.step_suite import EXAMPLES, SEEDS, KernelSuite
from tenonry_torch_base.kernel_parts import Bfloat16NormParts, GateParts, TurnParts

TOKENS = st.integers(1, 70)
FAR = 200.0  # e to this power overflows 32 bits


class BetweenSuite(KernelSuite):
    """Norms, rotation and gates of any number of tokens, against their formulas."""

    @EXAMPLES
    @given(SEEDS, TOKENS, st.integers(1, 300))
    def test_bfloat16_norm_is_its_formula(self, seed: int, count: int, size: int):
        torch.manual_seed(seed)
        weight = torch.randn(size)
        x = (torch.randn(count, size) * 3).bfloat16()
        kernel = self.offered(Bfloat16NormParts(weight, 1e-6))
        assert_close(kernel(x.clone()), rms_norm(x, weight, 1e-6))

    @EXAMPLES
    @given(SEEDS, TOKENS, st.integers(1, 300))
    def test_gate_is_its_formula(self, seed: int, count: int, inner: int):
        torch.manual_seed(seed)
        x = (torch.randn(count, 2 * inner) * 4).bfloat16()
        x[0, 0] = FAR
        x[-1, inner - 1] = -FAR
        gate, up = x.double().chunk(2, 1)
        kernel = self.offered(GateParts())
        assert_close(kernel(x.clone()), functional.silu(gate) * up)

    @EXAMPLES
    @given(SEEDS, TOKENS, st.integers(1, 3), st.integers(1, 3), HEADS, st.booleans(), st.booleans())
    def test_turn_heads_is_its_formula(
        self,
        seed: int,
        count: int,
        kv_heads: int,
        sharing: int,
        size: int,
        is_normalised: bool,
        is_cut: bool,
    ):
        torch.manual_seed(seed)
        parts = attention_parts(
            kv_heads, sharing, size, is_gated=False, is_normalised=is_normalised
        )
        rotated = size // 2 // 2 * 2 if is_cut and size >= 4 else size
        projected = torch.randn(count, parts.columns).bfloat16()
        cos, sin = torch.randn(2, count, 1, rotated).bfloat16()
        given_before = projected.clone()
        kernel = self.offered(TurnParts(parts))
        kernel(projected, cos, sin)
        query, key, value = turned_heads(parts, given_before, cos, sin)
        wanted = torch.cat([query, key], 1)
        made = projected.unflatten(1, (-1, size))
        assert_close(made[:, : parts.heads + kv_heads], wanted)
        assert torch.equal(made[:, parts.heads + kv_heads :].double(), value)

    def test_what_is_not_a_number_stays_in_its_row(self):
        torch.manual_seed(1)
        size = 32
        parts = attention_parts(2, 2, size, is_gated=False, is_normalised=True)
        x = torch.randn(20, parts.columns).bfloat16()
        cos, sin = torch.randn(2, 20, 1, size).bfloat16()
        others = torch.arange(20) != 11
        wrong = x.clone()
        wrong[11] = float("nan")
        turn = self.offered(TurnParts(parts))
        turned = [given.clone() for given in (x, wrong)]
        for each in turned:
            turn(each, cos, sin)
        norm = self.offered(Bfloat16NormParts(torch.randn(parts.columns), 1e-6))
        gate = self.offered(GateParts())
        for right, made in (turned, (norm(x), norm(wrong)), (gate(x), gate(wrong))):
            assert made[11].isnan().all()
            assert torch.equal(right[others], made[others])
