"""The order of copies and kernels, without a device: streams that record the work that precedes their next one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenonry_testkit.fakes.cuda import FakeCuda
from tenonry_worker_torch_cuda.buffers.step_buffers import FIRST_BYTES, CudaBuffers
from tenonry_worker_torch_cuda.buffers.stream_order import StreamOrder


class Recorder(StreamOrder):
    """Records each copy, the work before it, and the host's knowledge when it wrote the copied memory."""

    def __init__(self, device, lanes, cuda):
        super().__init__(device, lanes)
        self.cuda, self.copies, self.step = cuda, [], -1

    def begin_step(self, lane):
        super().begin_step(lane)
        self.step += 1

    def copied(self):
        work = ("copy", self.step, len(self.copies))
        self.copies.append((work, self._copies.run(work), set(self.cuda.host)))
        super().copied()

    def allocated(self):
        self.cuda.compute.run(("zero", len(self.copies)))
        super().allocated()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    for name in FakeCuda.NAMES:
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def run_steps(cuda, lanes, steps, puts=2):
    """Per step two copies and one kernel; returns (copies, what ran before the kernel of each step)."""
    buffers = CudaBuffers(torch.device("cpu"), lanes)
    order = buffers._order = Recorder(torch.device("cpu"), lanes, cuda)
    kernels = []
    for step in range(steps):
        buffers.begin_step()
        for number in range(puts):
            buffers.put(f"{number}", np.ones(4))
        kernels.append(cuda.compute.run(("kernel", step)))
    return order.copies, kernels


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_kernel_waits_for_the_copies_of_its_step(cuda, lanes):
    copies, kernels = run_steps(cuda, lanes, 7)
    for work, _, _ in copies:
        assert work in kernels[work[1]]


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_copy_waits_for_the_kernels_that_read_its_memory_and_for_no_later_one(cuda, lanes):
    copies, _ = run_steps(cuda, lanes, 7)
    for (_, step, _), before, _ in copies:
        kernels = {work[1] for work in before if work[0] == "kernel"}
        assert kernels == set(range(step - lanes + 1))


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_the_host_writes_only_what_was_copied_and_waits_for_no_kernel_but_those(cuda, lanes):
    copies, _ = run_steps(cuda, lanes, 7)
    for (_, step, _), _, host in copies:
        assert {work[1] for work in host if work[0] == "copy"} == set(range(step - lanes + 1))
        assert {work[1] for work in host if work[0] == "kernel"} == set(range(step - 2 * lanes + 1))


def test_a_new_block_is_zeroed_before_it_is_copied_into(cuda):
    buffers = CudaBuffers(torch.device("cpu"), 2)
    order = buffers._order = Recorder(torch.device("cpu"), 2, cuda)
    buffers.begin_step()
    buffers.put("large", np.ones(FIRST_BYTES))
    ((_, before, _),) = order.copies
    assert ("zero", 0) in before
