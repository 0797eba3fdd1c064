from __future__ import annotations

import threading
import weakref
from functools import partial

import numpy as np
import torch
import worker_families
import worker_tools
from worker_driver import Driver, Request

from tenonry.step import RowFailure
from tenonry_torch_base.results import DeviceFuture, StepResult
from tenonry_torch_base.sampler.logprobs import Logprobs
from tenonry_torch_base.sampler.sampler import Sampled
from tenonry_worker_torch.loading.packed_run import PackedRun


class Event:
    """A CUDA event that passes when it is waited for."""

    passed = False

    def record(self):
        self.passed = False

    def query(self):
        return self.passed

    def synchronize(self):
        self.passed = True


def sampled(failure=(0, 0, 0)):
    made = Sampled(torch.tensor([5, 6, 7]), torch.tensor(failure, dtype=torch.int32))
    made.logprobs = Logprobs(
        torch.tensor([[5, 1], [7, 2]]),
        torch.tensor([[-1.0, -2.0], [-3.0, -4.0]]),
        torch.tensor([1, 9]),
    )
    made.logprob_lines = np.array([0, 2])
    return made


def test_a_future_is_done_when_its_event_has_passed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    rows = np.array([4, 2, 9], np.int32)
    future = DeviceFuture(StepResult(3, rows, sampled(), []), torch.device("cpu"))
    assert not future.done()
    output = future.result()
    assert future.done()
    assert output is future.result()
    assert output.step_id == 3
    assert output.row.tolist() == [4, 2, 9]
    assert output.token_ids.tolist() == [5, 6, 7]
    assert output.logprobs.row.tolist() == [4, 9]


def test_a_thread_selects_the_device_before_it_reads_a_result(monkeypatch):
    """Otherwise each rank's thread would open a context on the first device of the node."""
    order = []

    class NotedEvent(Event):
        def query(self):
            order.append((threading.current_thread().name, "query"))
            return False

        def synchronize(self):
            order.append((threading.current_thread().name, "wait"))

    def select(device):
        order.append((threading.current_thread().name, device.index))

    monkeypatch.setattr(torch.cuda, "Event", NotedEvent)
    monkeypatch.setattr(torch.cuda, "set_device", select)
    rows = np.array([4, 2, 9], np.int32)
    future = DeviceFuture(StepResult(3, rows, sampled(), []), torch.device("cuda", 1))
    for name, read in (("poll", future.done), ("results", future.result)):
        thread = threading.Thread(target=read, name=name)
        thread.start()
        thread.join()
    assert order == [("poll", 1), ("poll", "query"), ("results", 1), ("results", "wait")]


def test_failed_rows_are_taken_out():
    rows = np.array([4, 2, 9], np.int32)
    result = StepResult(3, rows, sampled((RowFailure.NUMERICAL, RowFailure.SAMPLING, 0)), [])
    output = result.output()
    assert output.row.tolist() == [9]
    assert output.offsets.tolist() == [0, 1]
    assert output.failed_row.tolist() == [4, 2]
    assert output.failed_code.tolist() == [RowFailure.NUMERICAL, RowFailure.SAMPLING]
    assert output.logprobs.row.tolist() == [9]
    assert output.logprobs.rank.tolist() == [9]


def test_futures_of_two_steps_in_flight_give_the_same_tokens(monkeypatch):
    """As on CUDA: a launch returns a future, and the next step is launched before its result is read."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    runner = worker_tools.runner(
        worker_tools.loaded(worker_families.build("llama"), backend="sdpa")
    )
    runner.sampling.as_answer = partial(DeviceFuture, device=torch.device("cpu"))
    requests = [
        Request(i + 1, prompt, max_tokens=12) for i, prompt in enumerate(worker_tools.prompts())
    ]
    Driver(runner.answer, max_num_seqs=6, num_blocks=96, block_size=4, depth=2).run(requests)
    assert [request.output for request in requests] == worker_tools.generated("llama")


def test_the_largest_step_is_run_in_sequences_that_the_model_can_take():
    """The run that sizes the cache on a device: many prompts together, logits of the last positions only."""
    model = worker_tools.loaded(worker_families.build("llama"))
    prompts = [torch.tensor(prompt) for prompt in worker_tools.prompts()]
    run = PackedRun(model.backend, model.layers, model.buffers)
    last = run.last_logits(model.forward, prompts)
    alone = [run.last_logits(model.forward, [prompt])[0] for prompt in prompts]
    # Not to the last bits: sums of other numbers of rows may be added up in another order.
    torch.testing.assert_close(last, torch.stack(alone), rtol=1e-4, atol=1e-4)
    pool = weakref.ref(model.backend._pools[0])
    run.release()
    assert not any(layer.kv_cache for layer in model.layers.values())
    assert pool() is None, "it would count as used when the cache is sized"
