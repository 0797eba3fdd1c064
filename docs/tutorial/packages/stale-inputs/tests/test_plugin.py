"""The conformance suite of step buffers, and the contents of past steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tenonry_testkit.buffers import StepBuffersContract

from stale_inputs.plugin import StaleInputs


class TestStaleInputs(StepBuffersContract):
    buffers = "stale_inputs.plugin:StaleInputs"


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32, np.bool_])
def test_inputs_of_past_steps_are_overwritten(dtype: type) -> None:
    buffers = StaleInputs(torch.device("cpu"), 2)
    buffers.begin_step()
    array = np.zeros(4, dtype)
    stale = buffers.put("x", array)
    buffers.begin_step()
    assert np.array_equal(stale.numpy(), array)
    buffers.begin_step()
    assert not np.array_equal(stale.numpy(), array)
    assert not array.any()
