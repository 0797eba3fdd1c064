"""The buffers `cuda`: inputs arrive, stay while their step may run, and cost the host no wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenonry_worker_torch_cuda import CudaBuffers
from tenonry_worker_torch_cuda.buffers.step_buffers import ALIGNMENT, FIRST_BYTES

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [np.int32, np.int64, np.float32, np.float16, np.uint8, np.bool_]


@pytest.fixture(params=DEVICES)
def device(request):
    return torch.device(request.param)


@pytest.fixture
def buffers(device):
    made = CudaBuffers(device, 2)
    made.begin_step()
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 1, 1, 4), (), (0,), (0, 3)])
def test_what_is_put_in_arrives(buffers, device, dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensor = buffers.put("x", array)
    assert tensor.device.type == device.type
    assert tensor.shape == shape
    assert np.array_equal(tensor.cpu().numpy(), array)
    assert tensor.cpu().numpy().dtype == dtype


def test_arrays_that_are_no_single_run_of_memory(buffers):
    array = np.arange(24).reshape(4, 6)
    assert buffers.put("x", array.T).tolist() == array.T.tolist()
    assert buffers.put("y", array[::2, 1:4]).tolist() == array[::2, 1:4].tolist()


def test_the_array_may_change_at_once(buffers):
    array = np.ones(5, np.int64)
    tensor = buffers.put("x", array)
    array[:] = 2
    assert tensor.tolist() == [1] * 5


def test_puts_of_one_step_do_not_touch_each_other(buffers):
    arrays = [np.full(size, size, DTYPES[size % 3]) for size in range(40)]
    tensors = [buffers.put(f"{size}", array) for size, array in enumerate(arrays)]
    for array, tensor in zip(arrays, tensors, strict=True):
        assert np.array_equal(tensor.cpu().numpy(), array)
        assert not len(array) or (tensor.data_ptr() - tensors[1].data_ptr()) % ALIGNMENT == 0


@pytest.mark.parametrize("steps_in_flight", [1, 2, 3])
def test_memory_is_used_again_when_its_turn_comes_and_not_before(device, steps_in_flight):
    buffers = CudaBuffers(device, steps_in_flight)
    held, places = [], []
    for step in range(3 * steps_in_flight):
        buffers.begin_step()
        held.append(buffers.put("x", np.full(3, step)))
        places.append(held[-1].data_ptr())
        for back, tensor in enumerate(reversed(held[-steps_in_flight:])):
            assert tensor.tolist() == [step - back] * 3
    assert len(set(places)) == steps_in_flight
    assert places[steps_in_flight:] == places[:-steps_in_flight]


def test_a_step_larger_than_any_before_it(buffers):
    small = buffers.put("small", np.arange(5))
    large = buffers.put("large", np.full(FIRST_BYTES // 4, 7))  # twice the block
    after = buffers.put("after", np.arange(6))
    assert small.tolist() == list(range(5))
    assert bool((large == 7).all())
    assert after.tolist() == list(range(6))


def test_memory_does_not_grow_with_labels_or_steps(device):
    """Labels may name anything, a position for example; there is no end to them."""
    buffers = CudaBuffers(device, 2)
    places = set()
    for step in range(20):
        buffers.begin_step()
        places |= {buffers.put(f"{step}-{i}", np.ones(16)).data_ptr() for i in range(8)}
    assert len(places) == 2 * 8


def test_growing_in_inference_mode_leaves_memory_that_others_can_write(buffers):
    with torch.inference_mode():
        buffers.put("large", np.zeros(2 * FIRST_BYTES, np.uint8))
    assert buffers.put("x", np.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.gpu
class TestOverlap:
    """Copies overlap with the previous step's computation; the values read are correct all the same."""

    cuda = torch.device("cuda")

    def test_inputs_arrive_while_the_step_before_computes(self, busy_device):
        buffers = CudaBuffers(self.cuda, 2)
        buffers.begin_step()
        idle = busy_device()  # the kernels of the first step
        buffers.begin_step()
        buffers.put("x", np.arange(1000))
        buffers._order._arrived.synchronize()
        assert not idle.query()

    def test_a_kernel_waits_for_its_input(self, busy_device):
        buffers = CudaBuffers(self.cuda, 2)
        buffers.begin_step()
        with torch.cuda.stream(buffers._order._copies):
            busy_device()
        tensor = buffers.put("x", np.full(1 << 14, 3))
        assert int((tensor * 2).sum()) == 6 << 14

    def test_inputs_are_not_overwritten_before_they_are_read(self):
        """The host runs ahead of the device by more steps than declared."""
        buffers = CudaBuffers(self.cuda, 2)
        read = []
        for step in range(8):
            buffers.begin_step()
            tensor = buffers.put("x", np.full(1 << 14, step))
            torch.cuda._sleep(20_000_000)
            read.append(tensor.clone())
        assert (
            [int(tensor.min()) for tensor in read]
            == [int(tensor.max()) for tensor in read]
            == list(range(8))
        )

    def test_a_block_that_grows_is_not_zeroed_over_its_first_copy(self, busy_device):
        buffers = CudaBuffers(self.cuda, 2)
        buffers.begin_step()
        busy_device()
        assert int(buffers.put("x", np.full(FIRST_BYTES, 5)).min()) == 5
