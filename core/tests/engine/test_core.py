"""The engine core with fakes: steps, requests, faults (EC-6 to EC-12, KV-1, faults 10 and 25)."""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from tenonry.engine.core import STATS_INTERVAL_S
from tenonry.errors import PluginFault
from tenonry.messages import EngineCoreRequest, make_handle
from tenonry.outputs import FinishReason
from tenonry.sampling_params import StructuredOutput
from tenonry.step import Adapter
from tenonry_testkit.fakes import VirtualClock
from tenonry_testkit.kernel.engine import Inbox, expected, make_core, request

FAKES = "tenonry_testkit.fakes"


def deep(depth: int, *, late: bool = True) -> dict[str, Any]:
    return {
        "executor": {"name": f"{FAKES}:InstantExecutor", "options": {"depth": depth, "late": late}}
    }


def faulty(**parts: Any) -> dict[str, Any]:
    """Parts of `tenonry_testkit.kernel.faulty`, by kind, with their options."""
    return {
        kind: {"name": f"tenonry_testkit.kernel.faulty:Faulty{kind.title()}", "options": options}
        for kind, options in parts.items()
    }


class TestStep:
    def test_without_requests_there_is_nothing(self):
        """EC-9."""
        core = make_core()
        assert not core.has_work()
        assert core.step() == ({}, False)

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_every_request_gets_its_own_tokens(self, depth, late):
        """EC-9, EC-10: right with one, two and three steps in flight."""
        core = make_core(**deep(depth, late=late))
        assert core.depth == depth
        sources = [
            request(1, range(1, 30), max_tokens=5),
            request(2, [7], max_tokens=1),
            request(3, [9, 8], client=2, max_tokens=20),
            request(4, range(5), client=1, max_tokens=9, stop_ids=tuple(range(0, 512, 3))),
            *(request(handle, [handle] * handle, max_tokens=handle) for handle in range(5, 12)),
        ]
        for source in sources:
            assert core.add_request(source) is None
        inbox = Inbox().run(core)
        for source in sources:
            assert inbox.tokens[source.handle] == expected(core, source)
            stops = inbox.tokens[source.handle][-1] in source.stop_token_ids
            assert inbox.finished[source.handle].reason is (
                FinishReason.STOP if stops else FinishReason.LENGTH
            )
        assert core.step() == ({}, False)

    def test_filling_the_queue_comes_before_collecting(self):
        """EC-11: two launches without a result, then the oldest is waited for."""
        core = make_core(**deep(3))
        core.add_request(request(1))
        assert core.step() == ({}, True)
        assert core.step() == ({}, True)
        assert [len(core.in_flight), core.executor.worker.steps] == [2, 0]
        news, worked = core.step()
        assert worked
        assert news[0].token_ids.tolist() == expected(core, request(1))[:1]
        assert [output.step_id for output, _ in core.in_flight] == [1, 2]

    def test_a_result_that_is_there_is_not_kept_back(self):
        core = make_core(**deep(3, late=False))
        core.add_request(request(1))
        assert core.step()[0][0].token_ids.tolist() == expected(core, request(1))[:1]

    def test_nothing_is_launched_when_there_is_nothing_to_do(self):
        """EC-11: with nothing to schedule, the oldest result is collected."""
        core = make_core(**deep(2))
        core.add_request(request(1, max_tokens=1))
        launched = []
        core.executor.worker.on_step = launched.append
        inbox = Inbox().run(core)
        assert inbox.finished[1].reason is FinishReason.LENGTH
        assert [len(output.row) for output in launched] == [
            1,
            0,
        ]  # the second one reports the row that left
        assert launched[1].gone.tolist() == [0]

    def test_news_is_kept_apart_by_client(self):
        core = make_core()
        for client in (0, 3):
            core.add_request(request(1, client=client, max_tokens=1))
        assert set(core.step()[0]) == {0, 3}

    def test_delivered_tokens_are_continued(self):
        """Required to move a stream: tokens that were delivered elsewhere count as output."""
        core = make_core()
        source = request(1, max_tokens=8)
        whole = expected(core, source)
        core.add_request(request(1, max_tokens=8, output_token_ids=whole[:3]))
        assert Inbox().run(core).tokens[1] == whole[3:]


class TestAddRequest:
    """EC-6: a request that cannot run ends immediately, alone; the engine lives."""

    def test_a_request_that_fits_waits(self):
        core = make_core()
        assert core.add_request(request(1)) is None
        assert core.scheduler.get_request_counts() == (0, 1)

    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({"prompt": []}, "the prompt is empty"),
            ({"prompt": [1] * 64}, "max_model_len=64"),
            ({"prompt": [512]}, "token id 512"),
            ({"output_token_ids": [2**40]}, f"token id {2**40}"),
            ({"stop_ids": (2**31,)}, "stop_token_ids"),
            ({"tags": {"k": "v" * 1000}}, "tag 'k'"),
            (
                {"structured_output": StructuredOutput(json="{}")},
                r"structured_output=StructuredOutput\(json=.*: worker '.*' does not support 'grammar'",
            ),
            (
                {"adapter": Adapter("style", "1f")},
                r"adapter=Adapter\(name='style', .*: worker '.*FakeWorker' does not support 'lora'",
            ),
            (
                {"features": {"image": np.ones(2)}},
                "features={'image': .*}: worker '.*' does not support 'features'",
            ),
            ({"max_tokens": 2, "output_token_ids": [1, 2]}, "nothing is left to generate"),
            ({"data_parallel_rank": 3}, "data_parallel_rank=3"),
        ],
    )
    def test_what_can_never_run_is_refused_with_the_reason(self, fields, text):
        core = make_core()
        refused = core.add_request(request(1, **fields))
        assert refused is not None
        assert refused.handle == 1
        assert refused.reason is FinishReason.ERROR
        assert re.search(text, refused.error or "")
        core.add_request(request(2))
        assert Inbox().run(core).tokens[2] == expected(core, request(2))

    def test_a_request_that_the_pool_can_never_hold_is_refused_with_both_numbers(self):
        core = make_core(num_gpu_blocks_override=2, block_size=4, max_model_len=None)
        assert core.limits.max_model_len == 8
        refused = core.add_request(request(1, [1] * 8))
        assert refused is not None
        assert "8 tokens" in str(refused.error)

    def test_the_scheduler_may_refuse_one(self):
        core = make_core(**faulty(scheduler={"refuse": "never"}))
        refused = core.add_request(request(1, request_id="never"))
        assert refused is not None
        assert refused.error == "this one never"
        assert core.add_request(request(1)) is None  # its handle is free again

    @pytest.mark.parametrize("handle", [0, -1, 2**64])
    def test_a_handle_that_is_none_is_refused(self, handle):
        source = msgspec.structs.replace(request(1), handle=handle)
        refused = make_core().add_request(source)
        assert refused is not None
        assert "handle" in str(refused.error)

    def test_a_handle_in_use_is_refused_and_its_owner_goes_on(self):
        core = make_core()
        core.add_request(request(1))
        inbox = Inbox()
        inbox.take(core.step()[0])
        refused = core.add_request(request(1, [9, 9]))
        assert refused is not None
        assert "handle 1 is in use" in str(refused.error)
        assert inbox.run(core).tokens[1] == expected(core, request(1))
        assert core.add_request(request(1, [9, 9])) is None  # its owner has ended

    def test_kv_transfer_params_without_a_connector_are_a_warning(self, caplog):
        """EC-6, KV-1: the request runs all the same."""
        core = make_core()
        with caplog.at_level(logging.WARNING):
            assert core.add_request(request(1, kv_transfer_params={"key": 1})) is None
        assert "request r1 has kv_transfer_params, but there is no KV connector" in caplog.text
        assert Inbox().run(core).tokens[1] == expected(core, request(1))


class TestAbort:
    """EC-7."""

    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("steps", [0, 1, 2, 4])
    def test_an_aborted_request_ends_and_the_others_go_on(self, depth, steps):
        core = make_core(**deep(depth))
        for handle in (1, 2, 3):
            core.add_request(request(handle, [handle] * 3))
        inbox = Inbox()
        for _ in range(steps):
            inbox.take(core.step()[0])
        outputs_by_client = core.abort_requests([2, 77])
        (aborted,) = outputs_by_client[0].finished
        assert aborted.handle == 2
        assert aborted.reason is FinishReason.ABORT
        had = list(inbox.tokens.get(2, []))
        inbox.run(core)
        assert inbox.tokens.get(2, []) == had
        assert set(inbox.finished) == {1, 3}
        for handle in (1, 3):
            assert inbox.tokens[handle] == expected(core, request(handle, [handle] * 3))

    def test_all_at_once_and_each_client_hears_of_its_own(self):
        core = make_core()
        for client in (0, 2):
            core.add_request(request(5, client=client))
        outputs_by_client = core.abort_requests(None)
        aborted = {
            client: [finished.handle for finished in outputs.finished]
            for client, outputs in outputs_by_client.items()
        }
        assert aborted == {0: [5], 2: [make_handle(2, 5)]}
        assert core.abort_requests(None) == {}
        Inbox().run(core)

    def test_an_aborted_handle_may_be_used_again(self):
        core = make_core()
        core.add_request(request(1))
        core.abort_requests([1])
        assert core.add_request(request(1)) is None


class TestHeldNews:
    """Calls that change caches first drain the steps in flight; their news is not lost."""

    def test_it_is_delivered_by_the_next_steps(self):
        core = make_core(**deep(3))
        source = request(1)
        core.add_request(source)
        core.step()
        core.step()
        core.collect_all()
        assert len(core.in_flight) == 0
        assert core.has_work()
        assert Inbox().run(core).tokens[1] == expected(core, source)

    def test_news_is_delivered_even_if_nothing_else_is_left_to_do(self):
        core = make_core(**deep(2))
        core.add_request(request(1, max_tokens=1))
        core.step()
        core.collect_all()
        inbox = Inbox().run(core)
        assert inbox.finished[1].reason is FinishReason.LENGTH

    def test_a_fault_while_draining_is_not_forgotten(self):
        """The step is lost, so the engine cannot continue: the next step raises."""
        core = make_core(**deep(2), **faulty(worker={"fail": "execute_model"}))
        core.add_request(request(1))
        core.step()
        with pytest.raises(PluginFault, match="on purpose"):
            core.collect_all()
        assert core.has_work()
        with pytest.raises(PluginFault, match="on purpose"):
            core.step()


class TestStats:
    """Client 0 receives the scheduler's numbers a few times a second, and when work ends."""

    def test_not_more_often_than_the_interval(self):
        clock = VirtualClock()
        core = make_core(clock=clock)
        core.add_request(request(1, max_tokens=30))
        inbox = Inbox()
        for _ in range(10):
            news, _ = core.step()
            core.attach_stats(news, idle=False)
            inbox.take(news)
            clock.advance(STATS_INTERVAL_S / 4 + 1e-9)
        assert [stats.num_steps for stats in inbox.stats] == [1, 4, 4]
        assert inbox.stats[0].num_running == 1
        assert inbox.stats[0].num_waiting == 0

    def test_when_work_ends_at_once(self):
        core = make_core()
        core.add_request(request(1, max_tokens=2))
        inbox = Inbox()
        while core.has_work():
            news, _ = core.step()
            core.attach_stats(news, idle=not core.has_work())
            inbox.take(news)
        assert inbox.stats[-1].num_running == 0

    def test_only_when_something_happened(self):
        core = make_core()
        news: Any = {}
        core.attach_stats(news, idle=True)
        assert news == {}

    def test_client_zero_hears_of_the_requests_of_others(self):
        core = make_core()
        core.add_request(request(1, client=3))
        news, _ = core.step()
        core.attach_stats(news, idle=False)
        assert news[0].scheduler_stats.num_running == 1
        assert news[3].scheduler_stats is None

    def test_never_if_nobody_wants_them(self):
        core = make_core(log_stats=False)
        core.add_request(request(1))
        news, _ = core.step()
        core.attach_stats(news, idle=True)
        assert all(outputs.scheduler_stats is None for outputs in news.values())


def test_arrival_counts_and_times_come_from_the_clock():
    clock = VirtualClock(start=50.0)
    core = make_core(clock=clock)
    seen = []
    add = core.scheduler.add_request
    core.scheduler.add_request = lambda made: (seen.append(made), add(made))[1]  # type: ignore[method-assign]
    core.add_request(request(1))
    clock.advance(2)
    core.add_request(request(2))
    assert [(made.arrival, made.arrival_time) for made in seen] == [(1, 50.0), (2, 52.0)]
    event = Inbox().run(core).scheduled[1]
    assert event.queued_s == 2.0
    assert event.num_cached_tokens == 0


def test_a_prompt_of_any_integer_type_runs():
    core = make_core()
    source = EngineCoreRequest(
        handle=1,
        request_id="r",
        prompt_token_ids=np.array([1, 2, 3], np.uint8),
        sampling_params=request(1).sampling_params,
    )  # type: ignore[arg-type]
    core.add_request(source)
    assert Inbox().run(core).tokens[1] == expected(core, source)
