"""The conformance suite of step kernels; kernels that are not offered are skipped."""

from __future__ import annotations

from tenonry_testkit.step_kernels import StepKernelsContract


class TestTorchKernels(StepKernelsContract):
    kernels = "torch_kernels.plugin:TorchKernels"
