"""Step kernels of a processor whose newest instruction set is AVX2."""

from __future__ import annotations

from tenonry_kernels_cpu.kernels import CpuKernels


class Avx2(CpuKernels):
    """Kernels of the AVX2 library alone."""

    def __init__(self) -> None:
        super().__init__("avx2")
