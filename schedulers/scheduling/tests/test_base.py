"""The base class around the choice: rejecting, ending, preempting, counting."""

from __future__ import annotations

import pytest

from tenonry.errors import RequestError
from tenonry.outputs import FinishReason
from tenonry.request import RequestStatus
from tenonry_scheduling import BaseScheduler


class TestRefusals:
    def test_a_prompt_beyond_a_step_without_chunked_prefill(self, make_driver):
        driver = make_driver(budget=8, enable_chunked_prefill=False)
        with pytest.raises(RequestError, match=r"9 tokens.*max_num_batched_tokens=8"):
            driver.ask(9)
        assert not driver.scheduler.has_requests()

    def test_nothing_left_to_generate(self, make_driver):
        driver = make_driver()
        with pytest.raises(RequestError, match="6 tokens and may have 6"):
            driver.ask(4, 2, output_token_ids=[1, 2])
        with pytest.raises(RequestError, match="32 tokens and may have 32"):
            driver.ask(32)

    def test_more_than_the_pool_holds(self, make_driver):
        driver = make_driver(num_blocks=2)
        assert (
            driver.ask(4, 5).status is RequestStatus.WAITING
        )  # nine tokens, of which eight need slots
        with pytest.raises(RequestError, match="grow to 10 tokens, but the KV cache holds 8"):
            driver.ask(4, 6)

    def test_an_order_may_refuse_too(self, make_driver):
        driver = make_driver()

        def order(request):
            raise RequestError("not here")

        driver.waiting._order = order
        with pytest.raises(RequestError, match="not here"):
            driver.ask(4)
        assert not driver.scheduler.has_requests()


class TestEnding:
    def test_wherever_a_request_stands(self, make_driver):
        driver = make_driver(max_num_seqs=1)
        running, waiting = driver.ask(4), driver.ask(4)
        output = driver.step()
        ended = driver.scheduler.finish_requests(
            [waiting.handle, 12345, running.handle], FinishReason.ABORT
        )
        assert ended == [waiting, running]
        assert all(
            request.finish_reason is FinishReason.ABORT and request.is_finished for request in ended
        )
        assert driver.scheduler.get_request_counts() == (0, 0)
        assert not driver.scheduler.requests
        assert driver.scheduler.has_requests()  # the workers still hold the row
        assert driver.answer(output) == {}
        assert driver.step().gone.tolist() == [0]
        assert not driver.scheduler.has_requests()

    def test_the_block_manager_sees_all_tokens_and_the_end_once(self, make_driver):
        driver, freed, forgotten = make_driver(max_num_seqs=2), [], []
        blocks = driver.scheduler.blocks
        free = blocks.free
        blocks.free = lambda request, row, **how: (
            freed.append((request.num_tokens, how)) or free(request, row, **how)
        )
        blocks.forget = lambda request: forgotten.append(request.handle)
        ends, aborted, waits = driver.ask(4, 2), driver.ask(5, 9), driver.ask(4)
        driver.turn()
        driver.turn()
        assert freed == [(6, {"num_known": 5, "drop": False})]
        driver.scheduler.finish_requests([waits.handle, aborted.handle], FinishReason.ABORT)
        assert freed[1:] == [(7, {"num_known": 6, "drop": False})]
        assert forgotten == [ends.handle, waits.handle, aborted.handle]

    def test_blocks_on_their_way_are_waited_for(self, make_driver, monkeypatch):
        driver = make_driver()
        assert not driver.scheduler.has_requests()
        monkeypatch.setattr(type(driver.scheduler.blocks), "waits", True)
        assert driver.scheduler.has_requests()
        assert not driver.scheduler.requests

    def test_all_at_once(self, make_driver):
        driver = make_driver()
        requests = [driver.ask(4) for _ in range(6)]
        driver.step()
        assert driver.scheduler.finish_requests(None, FinishReason.ERROR) == requests
        assert driver.scheduler.finish_requests(None, FinishReason.ERROR) == []

    def test_the_outcome_counts_preemptions(self, make_driver):
        driver = make_driver()
        request = driver.ask(4, 1)
        driver.step()
        driver.scheduler.preempt(request)
        (outputs,) = driver.turn().values()
        assert outputs.finished[0].num_preemptions == 1


class TestHooks:
    @pytest.fixture
    def driver(self, make_driver):
        driver = make_driver(max_num_seqs=2)
        self.calls = []
        for name in ("started", "stopped"):
            setattr(driver.scheduler, name, self.record(name))
        return driver

    def record(self, name):
        return lambda request, *_: self.calls.append((name, request.status))

    def test_each_stay_starts_and_stops(self, driver):
        request = driver.ask(4, 2)
        driver.turn()
        driver.scheduler.preempt(request)
        driver.turn()
        assert self.calls == [
            ("started", RequestStatus.RUNNING),
            ("stopped", RequestStatus.PREEMPTED),
            ("started", RequestStatus.RUNNING),
            ("stopped", RequestStatus.FINISHED),
        ]

    def test_a_request_that_ends_in_the_queue_does_not_stop(self, driver):
        request = driver.ask(4)
        driver.turn()
        driver.scheduler.preempt(request)
        self.calls.clear()
        driver.scheduler.finish_requests([request.handle], FinishReason.ABORT)
        assert self.calls == []

    def test_started_comes_before_the_request_is_running(self, driver):
        active = []
        driver.scheduler.started = lambda request, row, *_: active.append(row in driver.rows.active)
        driver.ask(4)
        driver.turn()
        assert active == [False]


def test_a_preempted_request_keeps_its_place_in_the_queue(make_driver):
    driver = make_driver(max_num_seqs=1)
    first, second = driver.ask(4), driver.ask(4)
    driver.turn()
    driver.scheduler.preempt(first)
    assert list(driver.waiting) == [first, second]


def test_resetting_may_preempt_all_requests_first(make_driver):
    driver = make_driver()
    requests = [driver.ask(4) for _ in range(2)]
    output = driver.step()
    assert not driver.scheduler.reset_prefix_cache()
    assert driver.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert [request.status for request in requests] == [RequestStatus.PREEMPTED] * 2
    (outputs,) = driver.answer(output).values()
    assert len(outputs.handles) == 0
    assert len(driver.step().new) == 2


def test_statistics_count_since_the_last_call(make_driver):
    driver = make_driver(num_blocks=8)
    driver.ask(4)
    driver.ask(4)
    driver.turn()
    driver.scheduler.stats_extra["depth"] = 2.0
    stats = driver.scheduler.make_stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (2, 0, 1)
    assert stats.kv_cache_usage == pytest.approx(2 / 8)
    assert stats.extra == {"depth": 2.0}
    assert driver.scheduler.make_stats().num_steps == 0


def test_an_empty_step_has_a_number_too(make_driver):
    driver = make_driver()
    assert [driver.step().step_id for _ in range(3)] == [0, 1, 2]
    output = driver.step()
    assert (len(output.row), len(output.gone), output.new, output.total_tokens) == (0, 0, [], 0)


def test_a_constructor_that_is_not_called_is_named(make_driver):
    class Mine(BaseScheduler):
        def __init__(self, context):  # without super().__init__(…)
            self.context = context

        def choose(self, step): ...

    with pytest.raises(AttributeError, match=r"'Mine' .* 'requests'; call super\(\)\.__init__"):
        Mine(None).has_requests()
    scheduler = make_driver().scheduler
    with pytest.raises(AttributeError, match=r"no attribute 'reqests'$"):
        scheduler.reqests  # noqa: B018
