"""Rows whose K/V comes from a KV connector: waiting, arriving, starting, and losing loaded blocks."""

from __future__ import annotations

import pytest

from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus
from tenonry.step import Adapter
from tenonry_scheduling import Match
from tenonry_scheduling.blocks import Transferred


def nothing(step):
    """A step that schedules nothing."""


def run_everything(step):
    """Choose as an ordinary scheduler does."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request) and step.full:
            break


class TestRowsThatWaitForKV:
    @pytest.fixture
    def driver(self, make_driver):
        """Every request waits for a transfer first; six blocks, of which each request soon needs four."""
        driver = make_driver(num_blocks=6, max_model_len=20, budget=32)
        blocks = driver.scheduler.blocks
        blocks.match = lambda request, row: Match(0, ready=False)
        blocks.transfers = lambda done, failed: Transferred(list(done), list(failed))
        return driver

    def arrive(self, driver, *requests, lost=()):
        output = driver.step(nothing)
        done = [(request.row, 0) for request in requests]
        driver.answer(
            output, transfers_done=done, transfers_failed=[request.row for request in lost]
        )

    def test_they_keep_a_row_that_cannot_run(self, driver):
        request = driver.ask(8, 9)
        answers = []
        output = driver.step(
            lambda step: answers.extend(
                [step.run(request), step.full, step.run(request), step.run_ready()]
            )
        )
        assert answers == [False, False, False, False]
        assert output.new == []
        assert request.status is RequestStatus.WAITING_FOR_KV
        assert request.row >= 0
        assert request not in driver.waiting
        assert driver.scheduler.get_request_counts() == (0, 1)

    def test_they_run_when_it_came(self, driver):
        request = driver.ask(8, 9)
        driver.step(run_everything)
        self.arrive(driver, request)
        output = driver.step(run_everything)
        (new,) = output.new
        assert (new.handle, len(new.block_ids[0])) == (request.handle, 2)
        assert len(output.new_block_row) == 0  # they came with the row
        assert (output.row.tolist(), output.num_tokens.tolist()) == ([request.row], [8])

    def test_a_row_that_is_preempted_as_it_arrives_is_never_announced(self, driver):
        """Workers would be sent its end before its beginning."""
        first, second = driver.ask(16, 2), driver.ask(16, 2)
        driver.step(run_everything)
        self.arrive(driver, first, second)
        output = driver.step(run_everything)
        assert second.num_preemptions == 1
        assert [new.handle for new in output.new] == [first.handle]
        assert output.gone.tolist() == []
        (outputs,) = driver.answer(output).values()
        assert [event.handle for event in outputs.scheduled] == [first.handle]
        assert driver.scheduler.lifecycle.arrived == set()

    def test_their_adapter_counts_once(self, make_driver):
        driver = make_driver(num_blocks=20, max_loras=1)
        blocks = driver.scheduler.blocks
        blocks.match = lambda request, row: Match(0, ready=False)
        blocks.transfers = lambda done, failed: Transferred(list(done), list(failed))
        request = driver.ask(8, 9, adapter=Adapter("a", "1"))
        driver.ask(8, 9, adapter=Adapter("b", "2"))
        counts = {
            "lora_requests_running:a": 1,
            "lora_requests_waiting:a": 0,
            "lora_requests_running:b": 0,
            "lora_requests_waiting:b": 1,
        }
        driver.step(run_everything)
        assert driver.scheduler.make_stats().extra == counts
        self.arrive(driver, request)
        driver.step(run_everything)
        assert driver.scheduler.make_stats().extra == counts

    def test_they_have_started_when_they_ran(self, driver):
        first, second = driver.ask(8, 1), driver.ask(8, 1)
        driver.step(run_everything)
        driver.clock.advance(2.0)
        self.arrive(driver, first, second)
        (outputs,) = driver.answer(driver.step(lambda step: step.run(first))).values()
        assert [event.handle for event in outputs.scheduled] == [first.handle]
        driver.clock.advance(3.0)
        (outputs,) = driver.answer(driver.step(run_everything)).values()
        assert [(event.handle, event.queued_s) for event in outputs.scheduled] == [
            (second.handle, 5.0)
        ]

    def test_a_request_that_ends_as_it_arrives_does_not_run(self, driver):
        request = driver.ask(8, 9)
        driver.step(run_everything)
        self.arrive(driver, request)
        driver.scheduler.finish_requests([request.handle], FinishReason.ABORT)
        output = driver.step(run_everything)
        assert (output.new, output.row.tolist(), output.gone.tolist()) == ([], [], [])

    def test_rows_whose_load_failed_compute_again(self, driver):
        request = driver.ask(8, 9)
        driver.step(run_everything)
        self.arrive(driver, request)
        output = driver.step(run_everything)
        driver.scheduler.blocks.match = lambda request, row: Match(0)
        (outputs,) = driver.answer(output, transfers_failed=[request.row]).values()
        assert len(outputs.handles) == 0
        assert request.num_preemptions == 1
        output = driver.step()
        assert (output.gone.tolist(), output.num_tokens.tolist()) == ([0], [8])

    def test_started_is_called_before_they_are_running(self, driver):
        scheduler = driver.scheduler
        started = []
        scheduler.started = lambda request, row, num_computed, now: started.append(
            (request, row, num_computed, now, request in running())
        )

        def running():
            return [driver.rows.request(row) for row in driver.rows.active]

        request = driver.ask(8, 9)
        driver.step(run_everything)
        assert started == []
        driver.clock.advance(2.0)
        self.arrive(driver, request)
        assert started == [(request, request.row, 0, driver.clock(), False)]
        driver.step(lambda step: step.running == [request] and step.run_ready())
        assert len(started) == 1

    def test_started_is_followed_by_stopped_when_they_never_ran(self, driver):
        scheduler = driver.scheduler
        calls = []
        scheduler.started = lambda request, *_: calls.append(("started", request))
        scheduler.stopped = lambda request: calls.append(("stopped", request))
        first, second = driver.ask(16, 2), driver.ask(16, 2)
        driver.step(run_everything)
        self.arrive(driver, first, second)
        driver.step(run_everything)
        assert calls == [("started", first), ("started", second), ("stopped", second)]

    def test_a_request_that_ends_before_they_arrive_has_not_started(self, driver):
        calls = []
        driver.scheduler.started = lambda request, *_: calls.append("started")
        driver.scheduler.stopped = lambda request: calls.append("stopped")
        request = driver.ask(8, 9)
        driver.step(run_everything)
        driver.scheduler.finish_requests([request.handle], FinishReason.ABORT)
        assert calls == []
