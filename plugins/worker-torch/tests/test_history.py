"""The device's own copy of the tokens, exercised on the CPU: a step's samples feed the next without the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.step import DoneFuture
from tenonry_torch_base.history import History


@pytest.mark.parametrize(
    "way", [{}, {"budget": 7}, {"depth": 3}, {"budget": 9, "depth": 2, "preempt_every": 4}]
)
def test_a_history_of_its_own_gives_the_same_tokens(way, monkeypatch):
    """As on CUDA: the batch state on the host never receives the samples."""
    monkeypatch.setattr(History, "shares", staticmethod(lambda _device: False))
    runner = worker_tools.runner(worker_tools.loaded(worker_families.build("llama")))
    assert not runner.history.is_shared
    recorded = runner.state.token_ids
    requests = [
        Request(i + 1, prompt, max_tokens=12) for i, prompt in enumerate(worker_tools.prompts())
    ]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(requests)
    assert [request.output for request in requests] == worker_tools.generated("llama")
    assert runner.history.tokens.data_ptr() != torch.from_numpy(recorded).data_ptr()


def test_ids_that_come_with_a_step_are_used(monkeypatch):
    """A scheduler may send the next token instead of −1."""
    for shares in (True, False):
        monkeypatch.setattr(History, "shares", staticmethod(lambda _device, shares=shares: shares))
        runner = worker_tools.runner(worker_tools.loaded(worker_families.build("llama")))
        told = []

        def execute(output, runner=runner, told=told):
            output.next_token = output.next_token.copy()
            for i, row in enumerate(output.row.tolist()):
                if told and output.num_tokens[i] == 1:
                    output.next_token[i] = told[-1][row]
            result = runner.execute(output)
            told.append(dict(zip(result.row.tolist(), result.token_ids.tolist(), strict=True)))
            for row in result.row.tolist():  # what the worker remembers itself is spoilt
                runner.state.token_ids[row, runner.state.num_computed[row]] = 0
                runner.history.tokens[row, int(runner.state.num_computed[row])] = 0
            return DoneFuture(result)

        requests = [Request(1, worker_tools.prompts()[1], max_tokens=12)]
        Driver(execute, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
        assert [request.output for request in requests] == [worker_tools.generated("llama")[1]]
        assert np.all(runner.state.num_computed >= 0)
