"""Pinned memory between CPU and GPU: `CpuGpuBuffer` for code that keeps tensors on both sides, and the buffers `cuda`
through which a worker's step inputs reach the device. Worker process; imports torch.
"""

from __future__ import annotations

from tenonry_cuda_buffers.cpu_gpu_buffer import CpuGpuBuffer, copy_slice, tensor_data
from tenonry_cuda_buffers.step_buffers import CudaBuffers

__all__ = ["CpuGpuBuffer", "CudaBuffers", "copy_slice", "tensor_data"]
