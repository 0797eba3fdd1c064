from __future__ import annotations

import mmap

import psutil
import pytest
import torch

from tenonry_torch_base.attention.storage import paged_zeros, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("make", [zeros, paged_zeros])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_are_zero_writable_and_aligned(dtype, make):
    tensor = make((3, 5, 7), dtype, CPU)
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


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="a system without huge pages")
def test_parts_far_from_each_other_take_no_memory_between_them():
    """Such as one block of a KV cache in each layer."""
    process = psutil.Process()
    tensor = paged_zeros((64, 1 << 20), torch.float32, CPU)
    before = process.memory_info().rss
    tensor[:, :16] = 1
    assert process.memory_info().rss - before < 1 << 24


def test_an_empty_cache_has_no_elements():
    assert paged_zeros((2, 0, 4), torch.bfloat16, CPU).shape == (2, 0, 4)
