"""Cases for the kernels under sanitisers: the conformance suite, and shapes at the edges. Run by
`test_kernels_under_sanitisers.py` in a process of its own, with a library built for it.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry_testkit.step_kernels import StepKernelsContract
from tenonry_testkit.step_parts import expert_parts, low_rank_parts, random_masks, slot_tokens
from tenonry_torch_base.kernel_parts import BestAllowedParts, NormParts

EDGES = st.sampled_from([0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65])
ROWS = st.sampled_from([0, 1, 2, 3, 5])
MANY = settings(max_examples=100, deadline=None)


class TestSuite(StepKernelsContract):
    """Some 28 properties, 25 random shapes each."""

    kernels = "cpu"


class TestEdges(StepKernelsContract):
    """No row, one row, and sizes around those of vectors and blocks."""

    kernels = "cpu"
    locals().update({name: None for name in dir(StepKernelsContract) if name.startswith("test_")})

    @MANY
    @given(ROWS, EDGES)
    def test_norms(self, count: int, size: int):
        weight = torch.ones(size + 1)
        made = self.offered(NormParts(weight, 1e-6))(torch.randn(count, size + 1))
        assert made.isfinite().all()

    @MANY
    @given(ROWS, st.integers(1, 6), st.sampled_from([torch.float32, torch.bfloat16]))
    def test_masks(self, count: int, words: int, dtype: torch.dtype):
        logits = torch.randn(count, 32 * words).to(dtype)
        ids, best = self.offered(BestAllowedParts())(logits, random_masks(count, words, 0.5))
        assert ids.shape == best.shape == (count,)

    @MANY
    @given(ROWS, EDGES, st.integers(1, 5), EDGES)
    def test_experts(self, count: int, hidden: int, experts: int, inner: int):
        parts = expert_parts(hidden + 1, experts, 1, inner + 1, inner, has_gate=inner % 2 == 0)
        made = self.offered(parts)(torch.randn(count, hidden + 1))
        assert made.isfinite().all()

    @MANY
    @given(ROWS, EDGES, EDGES, st.integers(1, 20))
    def test_adapters(self, count: int, inputs: int, outputs: int, rank: int):
        parts = low_rank_parts(2, inputs + 1, [outputs + 1], rank, 0, torch.float32)
        out = torch.zeros(count, outputs + 1)
        self.offered(parts)(torch.randn(count, inputs + 1), out, slot_tokens(2, count))
        assert out.isfinite().all()
