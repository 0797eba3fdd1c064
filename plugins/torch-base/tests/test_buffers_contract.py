"""The suite of step buffers, over those of this distribution and over broken ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tenonry_testkit.buffers import StepBuffersContract
from tenonry_testkit.outcomes import failing_tests
from tenonry_torch_base.buffers import HostBuffers, StepBuffers

ARRIVE = "test_arrays_arrive_as_they_are"
FLIGHT = "test_a_step_in_flight_keeps_its_inputs"
SIZES = "test_sizes_change_from_step_to_step"


class TestHost(StepBuffersContract):
    buffers = "host"


class Copies(StepBuffers):
    """Copies into memory of its own, which is used again."""

    name = "copies"

    def __init__(self, device, steps_in_flight):
        super().__init__(device, steps_in_flight)
        self.memory = [{} for _ in range(steps_in_flight)]
        self.step = -1

    def begin_step(self):
        self.step = (self.step + 1) % self.steps_in_flight

    def bytes_of(self, label, array):
        memory = self.memory[self.step]
        if label not in memory or memory[label].nbytes < array.nbytes:
            memory[label] = np.zeros(array.nbytes, np.uint8)
        return memory[label][: array.nbytes]

    def put(self, label, array):
        copy = self.bytes_of(label, array).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return torch.from_numpy(copy)


class TestCopies(StepBuffersContract):
    buffers = Copies


class NoName(HostBuffers):
    caught_by = "test_it_has_a_name_and_a_version"
    name = ""


class Flattens(Copies):
    caught_by = ARRIVE

    def put(self, label, array):
        return super().put(label, array).flatten()


class Widens(Copies):
    caught_by = ARRIVE

    def put(self, label, array):
        return super().put(label, array.astype(np.int64))


class DropsEmpty(Copies):
    caught_by = ARRIVE

    def put(self, label, array):
        return super().put(label, array if array.size else np.zeros(1, array.dtype))


class ReadsMemoryInOrder(Copies):
    caught_by = "test_parts_of_arrays_arrive"

    def put(self, label, array):
        whole = array if array.base is None else array.base
        return super().put(label, whole.ravel()[: array.size].reshape(array.shape))


class IgnoresLabels(Copies):
    caught_by = "test_labels_of_a_step_have_memory_of_their_own"

    def put(self, label, array):
        return super().put("", array)


class ForgetsTheFourth(Copies):
    caught_by = "test_labels_of_a_step_have_memory_of_their_own"

    def put(self, label, array):
        number = sum(map(ord, label)) % 4
        return super().put(str(number), array)


class HasOneStep(Copies):
    caught_by = FLIGHT

    def begin_step(self):
        self.step = 0


class HasOneTooFew(Copies):
    caught_by = FLIGHT

    def __init__(self, device, steps_in_flight):
        super().__init__(device, max(1, steps_in_flight - 1))


class NeverGrows(Copies):
    caught_by = SIZES

    def bytes_of(self, label, array):
        memory = self.memory[self.step]
        return memory.setdefault(label, np.zeros(array.nbytes, np.uint8))[: array.nbytes]


class KeepsTheSize(Copies):
    caught_by = SIZES

    def put(self, label, array):
        known = self.memory[self.step].get(f"shape of {label}")
        if known is not None and known != array.shape:
            array = np.resize(array, known)
        self.memory[self.step][f"shape of {label}"] = array.shape
        return super().put(label, array)

    def bytes_of(self, label, array):
        return np.zeros(array.nbytes, np.uint8)


class ClearsTheArray(Copies):
    caught_by = "test_arrays_are_left_as_they_were"

    def put(self, label, array):
        tensor = super().put(label, array)
        array[...] = 0
        return tensor


class ExpectsArrays(Copies):
    caught_by = "test_steps_may_be_empty"

    def begin_step(self):
        if self.step >= 0 and not self.memory[self.step]:
            raise RuntimeError("the step before had no arrays")
        super().begin_step()


class SharesMemory(Copies):
    caught_by = "test_two_may_live_in_one_process"
    shared: dict = {}  # noqa: RUF012

    def __init__(self, device, steps_in_flight):
        super().__init__(device, steps_in_flight)
        self.memory = [self.shared.setdefault(n, {}) for n in range(steps_in_flight)]


BROKEN = [
    value
    for value in list(globals().values())
    if isinstance(value, type) and "caught_by" in vars(value)
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("buffers")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (StepBuffersContract,), {"buffers": broken})
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(StepBuffersContract) if name.startswith("test_")}
    assert tests == {broken.caught_by for broken in BROKEN}
