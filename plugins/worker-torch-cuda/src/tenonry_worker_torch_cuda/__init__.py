"""Pinned memory between CPU and GPU: `CpuGpuBuffer` for code that keeps tensors on both sides, and the buffers `cuda`
through which a worker's step inputs reach the device. Worker process; imports torch.
"""

from __future__ import annotations

from tenonry_worker_torch_cuda.buffers.cpu_gpu_buffer import CpuGpuBuffer, copy_slice, tensor_data
from tenonry_worker_torch_cuda.buffers.step_buffers import CudaBuffers

__all__ = ["CpuGpuBuffer", "CudaBuffers", "copy_slice", "tensor_data"]
