"""BF-1 to BF-4 on the CPU, and on CUDA if available."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenonry_worker_torch_cuda import CpuGpuBuffer, copy_slice, tensor_data


def on_cpu(*size, dtype=torch.int64, **options):
    return CpuGpuBuffer(*size, dtype=dtype, device="cpu", pin_memory=False, **options)


class TestMemory:
    """BF-1."""

    @pytest.mark.parametrize(
        "dtype", [torch.int32, torch.int64, torch.float16, torch.float32, torch.uint8, torch.bool]
    )
    def test_both_sides_are_zeroed_and_apart(self, dtype):
        buffer = on_cpu(3, 5, dtype=dtype)
        assert buffer.cpu.shape == buffer.gpu.shape == (3, 5)
        assert buffer.cpu.dtype == buffer.gpu.dtype == dtype
        assert not buffer.cpu.any()
        assert not buffer.gpu.any()
        buffer.cpu[0, 0] = 1
        assert not buffer.gpu.any()

    def test_numpy_shares_the_memory_of_the_cpu_side(self):
        buffer = on_cpu(4)
        assert buffer.np.dtype == np.int64
        buffer.np[:] = [1, 2, 3, 4]
        assert buffer.cpu.tolist() == [1, 2, 3, 4]
        buffer.cpu[2] = 7
        assert buffer.np.tolist() == [1, 2, 7, 4]

    def test_without_numpy_the_attribute_is_absent(self):
        assert not hasattr(on_cpu(4, with_numpy=False), "np")

    def test_bfloat16_with_numpy_is_refused_with_what_to_type(self):
        with pytest.raises(
            ValueError, match=r"bfloat16 has no numpy type .* pass with_numpy=False"
        ):
            on_cpu(4, dtype=torch.bfloat16)

    def test_bfloat16_without_numpy(self):
        buffer = on_cpu(4, dtype=torch.bfloat16, with_numpy=False)
        buffer.cpu.fill_(1.5)
        assert buffer.copy_to_gpu().tolist() == [1.5] * 4

    def test_a_size_of_nothing(self):
        assert on_cpu(0, 3).copy_to_gpu().shape == (0, 3)

    def test_pageable_unless_asked(self):
        assert not on_cpu(4).cpu.is_pinned()

    @pytest.mark.gpu
    def test_pinned_when_asked(self):
        buffer = CpuGpuBuffer(4, dtype=torch.int64, device="cuda", pin_memory=True)
        assert buffer.cpu.is_pinned()
        assert buffer.gpu.is_cuda
        assert not buffer.gpu.any()


class TestCopies:
    """BF-2, BF-3."""

    @pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def buffer(self, request):
        return CpuGpuBuffer(
            4, 2, dtype=torch.int32, device=request.param, pin_memory=request.param == "cuda"
        )

    @staticmethod
    def synchronise():
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def test_to_the_device_whole(self, buffer):
        buffer.np[:] = np.arange(8).reshape(4, 2)
        assert buffer.copy_to_gpu() is buffer.gpu
        assert buffer.gpu.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]

    def test_to_the_device_the_first_rows(self, buffer):
        buffer.np[:] = 1
        copied = buffer.copy_to_gpu(3)
        assert copied.shape == (3, 2)
        assert copied.data_ptr() == buffer.gpu.data_ptr()
        assert buffer.gpu.tolist() == [[1, 1]] * 3 + [[0, 0]]

    def test_none_of_it(self, buffer):
        """n = 0 is not n = None."""
        buffer.np[:] = 1
        assert buffer.copy_to_gpu(0).shape == (0, 2)
        assert not buffer.gpu.any()

    def test_to_the_cpu_whole(self, buffer):
        buffer.gpu.fill_(5)
        assert buffer.copy_to_cpu() is buffer.cpu
        self.synchronise()
        assert (buffer.np == 5).all()

    def test_to_the_cpu_the_first_rows(self, buffer):
        buffer.gpu.fill_(5)
        copied = buffer.copy_to_cpu(1)
        self.synchronise()
        assert copied.data_ptr() == buffer.cpu.data_ptr()
        assert buffer.np.tolist() == [[5, 5]] + [[0, 0]] * 3

    def test_a_slice_into_a_longer_target(self, buffer):
        target = torch.zeros(6, 2, dtype=torch.int32, device=buffer.gpu.device)
        buffer.np[:] = 2
        copied = copy_slice(buffer.cpu, target, 2)
        assert copied.shape == (2, 2)
        assert copied.data_ptr() == target.data_ptr()
        assert target.tolist() == [[2, 2]] * 2 + [[0, 0]] * 4

    @pytest.mark.gpu
    def test_nothing_waits_for_the_device(self, buffer, busy_device):
        if buffer.gpu.device.type == "cpu":
            pytest.skip("a copy between CPU tensors is done on return")
        idle = busy_device()
        buffer.copy_to_gpu()
        buffer.copy_to_gpu(2)
        buffer.copy_to_cpu()
        copy_slice(buffer.cpu, buffer.gpu, 3)
        assert not idle.query()


class TestBytes:
    """BF-4."""

    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.uint8]
    )
    def test_are_those_of_the_tensor(self, dtype):
        tensor = (torch.arange(6) % 2).to(dtype).view(2, 3)
        view = tensor_data(tensor)
        assert isinstance(view, memoryview)
        assert view.format == "B"
        assert view.ndim == 1
        assert view.nbytes == tensor.nbytes
        assert torch.equal(torch.frombuffer(bytearray(view), dtype=dtype).view(2, 3), tensor)

    def test_contiguous_memory_is_not_copied(self):
        tensor = torch.zeros(4, dtype=torch.uint8)
        view = tensor_data(tensor)
        tensor[1] = 9
        assert bytes(view) == b"\0\x09\0\0"

    def test_other_layouts_come_in_row_major_order(self):
        tensor = torch.arange(6, dtype=torch.uint8).view(2, 3).t()
        assert bytes(tensor_data(tensor)) == bytes([0, 3, 1, 4, 2, 5])

    @pytest.mark.parametrize(("tensor", "size"), [(torch.tensor(1.5), 4), (torch.empty(0, 3), 0)])
    def test_scalars_and_nothing(self, tensor, size):
        assert tensor_data(tensor).nbytes == size

    def test_parameters_need_no_detour(self):
        assert tensor_data(torch.nn.Parameter(torch.ones(2))).nbytes == 8

    @pytest.mark.gpu
    def test_of_a_device_come_to_the_cpu(self):
        assert bytes(tensor_data(torch.arange(3, dtype=torch.uint8, device="cuda"))) == b"\0\1\2"
