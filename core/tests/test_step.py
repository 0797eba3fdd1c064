"""Answers of a step that are there, and reasons why a row cannot continue."""

from __future__ import annotations

import pytest

from tenonry.step import DoneFuture, ModelRunnerOutput, RowFailure


def test_a_done_future_is_done():
    output = ModelRunnerOutput(step_id=3)
    future = DoneFuture(output)
    assert future.done()
    assert future.result(timeout=0) is output


@pytest.mark.parametrize("code", [RowFailure.NUMERICAL, RowFailure.SAMPLING])
def test_every_failure_code_has_a_text(code):
    assert RowFailure.TEXT[code]
