from __future__ import annotations

import psutil
import pytest
import torch

from tenonry_worker_torch.attention.storage import zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_are_zero_writable_and_aligned(dtype):
    tensor = zeros((3, 5, 7), dtype, CPU)
    assert tensor.shape == (3, 5, 7)
    assert tensor.dtype == dtype
    assert tensor.data_ptr() % 64 == 0
    assert tensor.is_contiguous()
    assert not tensor.any()
    tensor[1] = 2
    assert tensor.sum() == 2 * 35


def test_memory_is_taken_when_it_is_used():
    process = psutil.Process()
    before = process.memory_info().rss
    tensor = zeros((1 << 28,), torch.float32, CPU)
    assert process.memory_info().rss - before < 1 << 27
    tensor[: 1 << 26] = 1
    assert process.memory_info().rss - before > 1 << 27
