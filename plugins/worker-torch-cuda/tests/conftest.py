from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def busy_device():
    """Keeps the current stream of the CUDA device busy, for about a second; returns an event that follows."""

    def start():
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000_000)
        after = torch.cuda.Event()
        after.record()
        return after

    yield start
    torch.cuda.synchronize()
