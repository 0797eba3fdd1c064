"""Common parts of the step kernel suites: the implementation, random shapes, tolerances. Test process."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from hypothesis import strategies as st

from tenonry.plugin.manager import resolve_point
from tenonry_testkit.search import few_examples
from tenonry_torch_base.points import STEP_KERNELS
from tenonry_torch_base.step_kernels import Refusal, StepKernels

EXAMPLES = few_examples(25)
SEEDS = st.integers(0, 2**31)
SIZES = st.integers(1, 40)
COUNTS = st.integers(1, 9)
TOLERANCE = 2e-4


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare up to float32 rounding."""
    assert got.shape == wanted.shape
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), wanted, rtol=TOLERANCE, atol=TOLERANCE)


class KernelSuite:
    """Base suite of one implementation: `kernels` names a class, or is an object."""

    kernels: ClassVar[str | StepKernels]

    def made(self) -> StepKernels:
        if not isinstance(self.kernels, str):
            return self.kernels
        found, _ = resolve_point(STEP_KERNELS, self.kernels)
        reason = found.refusal()
        if reason is not None:
            pytest.skip(reason)
        made: StepKernels = found()
        return made

    def offered(self, parts: Any) -> Any:
        """Return the kernel for these parts; skips the test without one."""
        found = self.made().make(parts)
        if isinstance(found, Refusal):
            pytest.skip(f"no kernel for {type(parts).__name__}: {found.reason}")
        return found

    def invariant(self) -> Any:
        """Return the batch-invariant kernels; skips the test without any."""
        found = self.made().invariant()
        if found is None:
            pytest.skip("no batch-invariant kernels")
        return found
