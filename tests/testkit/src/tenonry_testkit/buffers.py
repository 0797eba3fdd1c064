"""The conformance suite of step buffers of workers on torch: inputs arrive complete and remain valid. Test process.

from tenonry_testkit.buffers import StepBuffersContract

class TestMine(StepBuffersContract):
    buffers = "my_package:MyBuffers"

Install `tenonry-testkit[torch]`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tenonry_testkit.targets import resolve_target
from tenonry_torch_base.buffers import StepBuffers
from tenonry_torch_base.points import BUFFERS

DTYPES = (np.int32, np.int64, np.float32, np.bool_, np.uint8)
SHAPES = ((0,), (1,), (5,), (2, 3), (0, 4), (3, 1, 2))


class StepBuffersContract:
    """Subclass in a test module and name the `buffers`; `device`: their device."""

    buffers: ClassVar[str | type[StepBuffers] | None] = None
    device: ClassVar[str] = "cpu"

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self, steps_in_flight: int = 2) -> StepBuffers:
        """Fresh buffers, as a worker builds them."""
        target: Any = self.buffers
        cls, _, _ = resolve_target(BUFFERS, target)
        made: StepBuffers = cls(torch.device(self.device), steps_in_flight)
        return made

    def assert_same(self, tensor: torch.Tensor, array: NDArray[Any]) -> None:
        """Compare type, shape, device and contents."""
        assert tensor.device.type == torch.device(self.device).type
        assert tuple(tensor.shape) == array.shape
        assert tensor.dtype == torch.from_numpy(np.zeros(1, array.dtype)).dtype
        assert np.array_equal(tensor.cpu().numpy(), array)

    # ------------------------------------------------------------------ the contract
    def test_it_has_a_name_and_a_version(self) -> None:
        """It resolves, and declares both."""
        made = self.build()
        assert isinstance(made, StepBuffers)
        assert made.name
        assert made.interface_version == 1

    @pytest.mark.parametrize("shape", SHAPES)
    def test_arrays_arrive_as_they_are(self, shape: tuple[int, ...]) -> None:
        """All types and shapes, empty ones included."""
        made = self.build()
        for dtype in DTYPES:
            made.begin_step()
            array = (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)
            self.assert_same(made.put("x", array), array)

    def test_parts_of_arrays_arrive(self) -> None:
        """Columns and every second value: non-contiguous memory."""
        made = self.build()
        made.begin_step()
        array = np.arange(24, dtype=np.int32).reshape(4, 6)
        for number, part in enumerate((array[:, 2], array[::2], array.T)):
            self.assert_same(made.put(f"part {number}", part), part)

    def test_labels_of_a_step_have_memory_of_their_own(self) -> None:
        """Any number of arrays in one step, all valid until its end."""
        made = self.build()
        made.begin_step()
        arrays = [np.full(4, number) for number in range(20)]
        tensors = [made.put(f"array {number}", array) for number, array in enumerate(arrays)]
        for tensor, array in zip(tensors, arrays, strict=True):
            self.assert_same(tensor, array)

    @pytest.mark.parametrize("steps", [1, 2, 3])
    def test_a_step_in_flight_keeps_its_inputs(self, steps: int) -> None:
        """Inputs are valid until the maximum number of further steps have begun."""
        made = self.build(steps)
        held: list[tuple[torch.Tensor, NDArray[Any]]] = []
        for number in range(4 * steps):
            made.begin_step()
            array = np.full(8, number, np.int64)
            held = [*held, (made.put("x", array), array)][-steps:]
            for tensor, kept in held:
                self.assert_same(tensor, kept)

    def test_sizes_change_from_step_to_step(self) -> None:
        """Larger and smaller, of another type and shape under the same label."""
        made = self.build()
        for size in (1, 100, 3, 10_000, 0, 7):
            made.begin_step()
            for dtype in (np.int64, np.float32):
                array = np.arange(size).astype(dtype)
                self.assert_same(made.put(f"x of {dtype.__name__}", array), array)
            made.begin_step()
            grid = np.arange(size * 2, dtype=np.int32).reshape(size, 2)
            self.assert_same(made.put("x of int64", grid), grid)

    def test_arrays_are_left_as_they_were(self) -> None:
        """The caller keeps its arrays and may pass them again; they may be read-only."""
        made = self.build()
        array = np.arange(6, dtype=np.int32)
        made.begin_step()
        first = made.put("x", array)
        again = made.put("y", array)
        assert array.tolist() == list(range(6))
        self.assert_same(first, array)
        self.assert_same(again, array)

    def test_steps_may_be_empty(self) -> None:
        """No call of `put` between two steps."""
        made = self.build(3)
        for _ in range(7):
            made.begin_step()
        array = np.arange(4)
        self.assert_same(made.put("x", array), array)

    def test_two_may_live_in_one_process(self) -> None:
        """Each worker has its own, and they share nothing."""
        first, second = self.build(1), self.build(1)
        ones, twos = np.full(4, 1), np.full(4, 2)
        first.begin_step()
        second.begin_step()
        tensors = first.put("x", ones), second.put("x", twos)
        self.assert_same(tensors[0], ones)
        self.assert_same(tensors[1], twos)
