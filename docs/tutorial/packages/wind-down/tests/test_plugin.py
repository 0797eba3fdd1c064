"""The conformance suite of logits processors, and the logits of rows before and after their start."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow
from tenonry_testkit.logits_processor import LogitsProcessorContract
from tenonry_torch_base.sampler.processors import ProcessorContext, SampleStep

from wind_down.plugin import STRENGTH, WindDown

ROWS, LENGTH, VOCABULARY, STOP = 3, 8, 10, 4


class TestWindDown(LogitsProcessorContract):
    logits_processor = "wind_down.plugin:WindDown"
    asking: ClassVar[dict[str, Any]] = {"extra_args": {"wind_down": 2}}


@pytest.fixture
def processor() -> WindDown:
    history = torch.zeros(ROWS, LENGTH, dtype=torch.int32)
    context = ProcessorContext(ROWS, VOCABULARY, torch.device("cpu"), history, history.numpy())
    return WindDown(context)


def new_row(row: int = 0, stop: tuple[int, ...] = (STOP,), **extra: Any) -> NewRow:
    return NewRow(
        row=row,
        handle=1,
        token_ids=np.arange(3, dtype=np.int32),
        num_computed=0,
        num_output=0,
        block_ids=(),
        sampling=SamplingParams(extra_args=extra),
        stop_token_ids=stop,
    )


def test_extra_args_select_requests(processor: WindDown) -> None:
    assert processor.enter(new_row(wind_down=2))
    assert not processor.enter(new_row())
    assert not processor.enter(new_row(wind_down=True))
    assert not processor.enter(new_row(wind_down=2**63))
    assert not processor.enter(new_row(stop=(), wind_down=2))


def test_the_end_becomes_more_likely(processor: WindDown) -> None:
    processor.enter(new_row(row=0, wind_down=2))
    processor.enter(new_row(row=2, wind_down=9))
    logits = torch.zeros(2, VOCABULARY)
    rows, num_output = np.array([2, 0], np.int32), np.array([5, 5], np.int32)
    processor.apply(logits, SampleStep(rows, num_output, num_output + 3))
    assert logits.nonzero().tolist() == [[1, STOP]]
    assert logits[1, STOP].item() == pytest.approx(3 * STRENGTH)
