"""The kernels, for each instruction set that this processor has, under the suite that any implementation passes."""

from __future__ import annotations

import pytest

from tenonry_kernels_cpu.kernels import CpuKernels
from tenonry_kernels_cpu.library import LibraryError, instruction_sets
from tenonry_testkit.step_kernels import StepKernelsContract

pytestmark = pytest.mark.skipif(CpuKernels.refusal() is not None, reason="no library was built")


class TestBest(StepKernelsContract):
    kernels = "cpu"


@pytest.mark.nightly
class TestWithoutTiles(StepKernelsContract):
    """Processors that multiply pairs of halves, but not tiles of them."""

    def made(self) -> CpuKernels:
        if "amx" not in instruction_sets():
            pytest.skip("the best instruction set has no tiles")
        return CpuKernels("avx512bf16")


@pytest.mark.nightly
class TestWithoutProducts(StepKernelsContract):
    """Processors that multiply pairs of halves, with a library that does not."""

    def made(self) -> CpuKernels:
        if "avx512" not in instruction_sets():
            pytest.skip("the processor has no AVX-512")
        return CpuKernels("avx512")


@pytest.mark.nightly
class TestWithoutHalves(StepKernelsContract):
    """Processors that multiply bytes, but not pairs of halves."""

    def made(self) -> CpuKernels:
        if "avx512vnni" not in instruction_sets():
            pytest.skip("the processor has no AVX-512 VNNI")
        return CpuKernels("avx512vnni")


@pytest.mark.slow
class TestBaseline(StepKernelsContract):
    """Instruction set of every processor."""

    def made(self) -> CpuKernels:
        return CpuKernels("baseline")


@pytest.mark.nightly
class TestMiddle(StepKernelsContract):
    """Instruction set between the best and the baseline, if any."""

    def made(self) -> CpuKernels:
        if "avx2" not in instruction_sets():
            pytest.skip("the processor has no AVX2")
        return CpuKernels("avx2")


def test_best_instruction_set_is_the_first_of_those_that_can_be_used():
    assert CpuKernels().description == instruction_sets()[0]
    assert instruction_sets()[-1] == "baseline"


def test_instruction_set_that_the_processor_lacks_is_refused_by_name():
    with pytest.raises(
        LibraryError, match=r"instruction set 'mmx' cannot be used here, only .*baseline"
    ):
        CpuKernels("mmx")
