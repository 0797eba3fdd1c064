"""The choices of the batching scheduler, step by step. That they are right is the conformance suite's business."""

from __future__ import annotations

from typing import ClassVar

import pytest

from tenonry.errors import PluginNotFound
from tenonry.info import PluginRecord
from tenonry_scheduler_batching import SchedulingPolicy
from tenonry_scheduler_batching.scheduler import BatchingOptions, BatchingScheduler
from tenonry_scheduling import MAX_PROMPT_LOGPROB_TOKENS
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness

PRIORITY = "tenonry_scheduler_batching.policies:PriorityPolicy"


class LastComeFirstServed(SchedulingPolicy):
    starvation_free = False

    def order(self, request):
        return -request.arrival


class OneAtATime(SchedulingPolicy):
    seen: ClassVar[list] = []

    def admit(self, request, state):
        self.seen.append(state)
        return state.num_running < 1


class OldestGivesWay(SchedulingPolicy):
    def victim(self, running):
        return running[0]


def make_harness(
    policy: object = "tenonry_scheduler_batching.policies:FcfsPolicy", options=None, **spec
) -> SchedulerHarness:
    """`policy`: a value of `--scheduling-policy`, or a class to which its resolution leads."""
    name = policy if isinstance(policy, str) else "mine"

    def build(context):
        if name == "mine":
            context.resolve = lambda point, choice: (
                policy,
                PluginRecord(point.kind, choice.name, "mine:Mine"),
            )
        return BatchingScheduler(context)

    fields = {"max_num_seqs": 4, "num_blocks": 40, "config": (("scheduling_policy", name),), **spec}
    return SchedulerHarness(build, HarnessSpec(**fields), options=BatchingOptions(**options or {}))


def sizes(harness: SchedulerHarness) -> dict[int, int]:
    """Handle → tokens of the next step."""
    harness.launch()
    output = harness.outputs[-1]
    handles = harness.scheduler.rows.handle[output.row].tolist()
    harness.deliver()
    return dict(zip(handles, output.num_tokens.tolist(), strict=True))


class TestChunks:
    def test_decodes_come_first_then_the_prompt_gets_the_rest(self):
        harness = make_harness(max_num_batched_tokens=8, max_model_len=64)
        harness.add([1, 2], max_tokens=20)
        assert sizes(harness) == {1: 2}
        harness.add(range(20))
        assert [sizes(harness) for _ in range(4)] == [
            {1: 1, 2: 7},
            {1: 1, 2: 7},
            {1: 1, 2: 6},
            {1: 1, 2: 1},
        ]
        harness.drain()

    def test_a_bound_on_long_prompts_lets_others_pass(self):
        harness = make_harness(
            options={"long_prefill_token_threshold": 5}, max_num_batched_tokens=8
        )
        harness.add(range(20))
        harness.add([1, 2])
        assert [sizes(harness) for _ in range(2)] == [{1: 5, 2: 2}, {1: 5, 2: 1}]
        harness.drain()

    def test_without_the_bound_they_wait(self):
        harness = make_harness(max_num_batched_tokens=8)
        harness.add(range(20))
        harness.add([1, 2])
        assert [sizes(harness) for _ in range(3)] == [{1: 8}, {1: 8}, {1: 4, 2: 2}]
        harness.drain()

    def test_without_chunks_one_that_grew_long_splits_no_other(self):
        harness = make_harness(
            max_num_batched_tokens=12,
            max_model_len=96,
            num_blocks=60,
            enable_prefix_caching=False,
            config=(
                ("scheduling_policy", "tenonry_scheduler_batching.policies:FcfsPolicy"),
                ("enable_chunked_prefill", False),
                ("max_model_len", None),
            ),
        )
        harness.add(range(4), max_tokens=80)
        while sum(sizes(harness).values()) and harness.scheduler.rows.num_tokens[0] < 70:
            pass
        harness.scheduler.reset_prefix_cache(reset_running_requests=True)
        harness.add(range(10), max_tokens=1)
        steps = [sizes(harness) for _ in range(12)]
        assert max(each.get(1, 0) for each in steps) == 12
        assert [each[2] for each in steps if 2 in each] == [10]
        harness.drain()


class TestAdmission:
    def test_equal_prompts_of_one_step_share_what_the_first_computes(self):
        harness = make_harness(max_num_batched_tokens=16)
        entries = [harness.add(range(9)) for _ in range(3)]
        assert sizes(harness) == {1: 9, 2: 1, 3: 1}
        assert [entry.num_cached for entry in entries] == [0, 8, 8]
        harness.drain()

    def test_the_watermark_keeps_blocks_for_those_who_run(self):
        """Ten blocks; the first request takes seven and leaves three, fewer than four tenths."""
        counts = {}
        for watermark in (0.0, 0.4):
            harness = make_harness(
                options={"watermark": watermark}, num_blocks=10, max_num_batched_tokens=32
            )
            harness.add(range(25), max_tokens=3)
            sizes(harness)
            harness.add(range(50, 54), max_tokens=3)
            counts[watermark] = len(sizes(harness))
            harness.drain()
        assert counts == {0.0: 2, 0.4: 1}

    def test_an_empty_engine_admits_below_the_watermark(self):
        """Its blocks may be on their way to somewhere, with no row that holds them."""
        harness = make_harness(options={"watermark": 0.9}, num_blocks=8)
        pool = harness.scheduler.blocks.pool
        away = pool.take(3)
        harness.add([1, 2, 3])
        assert sizes(harness) == {1: 3}
        pool.release(away)
        harness.drain()

    def test_who_waits_is_not_admitted_in_a_step_that_preempts(self):
        harness = make_harness(LastComeFirstServed, num_blocks=8, max_num_batched_tokens=32)
        entries = [harness.add(range(20 * i, 20 * i + 14), max_tokens=12) for i in range(2)]
        while len(harness.scheduler.rows.running()) < 2 or harness.scheduler.blocks.num_free:
            harness.turn()
        harness.add([19] * 2, max_tokens=1)
        while not any(entry.request.num_preemptions for entry in entries):
            harness.turn()
        assert not harness.outputs[-1].new  # though there is room, and it comes first in this order
        harness.turn()
        assert [new.handle for new in harness.outputs[-1].new] == [3]
        harness.drain()


class TestPolicies:
    def test_the_order_of_the_queue(self):
        harness = make_harness(LastComeFirstServed, max_num_seqs=1)
        for _ in range(3):
            harness.add([1, 2], max_tokens=1)
        assert [list(sizes(harness)) for _ in range(3)] == [[3], [2], [1]]
        harness.drain()

    def test_priorities(self):
        harness = make_harness(PRIORITY, max_num_seqs=1)
        for priority in (3, 1, 2, 1):
            harness.add([1, 2], max_tokens=1, priority=priority)
        assert [list(sizes(harness)) for _ in range(4)] == [[2], [4], [3], [1]]
        harness.drain()

    def test_the_earlier_arrival_of_equals_comes_first(self, monkeypatch):
        """AF-6: the arrival time that the caller passes counts, for time in the queue as well."""
        monkeypatch.setattr("time.time", lambda: 100.0)
        harness = make_harness(PRIORITY, max_num_seqs=1)
        entries = [
            harness.add([1, 2], max_tokens=1, arrival_time=arrival)
            for arrival in (None, 99.0, 98.0, None)
        ]
        assert [entry.request.arrival_time for entry in entries] == [
            harness.clock() - waited for waited in (0, 1, 2, 0)
        ]
        assert [list(sizes(harness)) for _ in range(4)] == [[3], [2], [1], [4]]
        harness.drain()

    def test_admission_is_the_policys_too(self):
        OneAtATime.seen.clear()
        harness = make_harness(OneAtATime)
        harness.clock.advance(3.0)
        for _ in range(2):
            harness.add([1, 2, 3], max_tokens=1)
        assert [list(sizes(harness)) for _ in range(2)] == [[1], [2]]
        first, second, third = OneAtATime.seen
        assert (first.num_running, first.tokens_left, first.free_blocks, first.now) == (
            0,
            16,
            40,
            harness.clock(),
        )
        assert (second.num_running, second.tokens_left, second.free_blocks) == (1, 13, 39)
        assert third.num_running == 0
        harness.drain()

    @pytest.mark.parametrize(
        ("policy", "victim"), [(SchedulingPolicy, 1), (OldestGivesWay, 0), (PRIORITY, 0)]
    )
    def test_the_victim(self, policy, victim):
        harness = make_harness(policy, num_blocks=8, max_num_batched_tokens=32)
        entries = [
            harness.add(range(20 * i, 20 * i + 14), max_tokens=12, priority=1 - i) for i in range(2)
        ]
        while not any(entry.request.num_preemptions for entry in entries):
            harness.turn()
        assert [entry.request.num_preemptions for entry in entries] == [
            int(i == victim) for i in range(2)
        ]
        harness.drain()

    def test_whether_a_request_may_starve(self):
        assert make_harness().scheduler.starvation_free
        assert not make_harness(PRIORITY).scheduler.starvation_free
        assert BatchingScheduler.starvation_free

    def test_an_unknown_policy_is_not_found(self):
        with pytest.raises(PluginNotFound, match="fcfs"):
            make_harness("fcsf")


def test_a_step_does_not_notice_who_waits(monkeypatch):
    """Design §5. With all rows taken no waiting request is visited, however many there are."""
    harness = make_harness(max_num_seqs=2, max_model_len=64)
    for _ in range(2):
        harness.add([1, 2, 3], max_tokens=30)
    harness.turn()
    for _ in range(30):
        harness.add([4, 5], max_tokens=1)
    monkeypatch.setattr(
        type(harness.scheduler.waiting),
        "__iter__",
        lambda queue: pytest.fail("the queue was visited"),
    )
    for _ in range(20):
        harness.turn()
    monkeypatch.undo()
    harness.drain()


def test_preemptions_of_one_request_are_bounded():
    """A pool that overflows all the time: every request finishes, after few preemptions."""
    harness = make_harness(
        num_blocks=10, max_model_len=40, max_num_batched_tokens=40, max_num_seqs=4
    )
    entries = [harness.add(range(50 * i, 50 * i + 6), max_tokens=30) for i in range(12)]
    harness.drain()
    assert max(entry.request.num_preemptions for entry in entries) <= 8
    assert sum(entry.request.num_preemptions for entry in entries) > 0


class TestFailedRows:
    def test_what_an_aborted_row_computed_is_not_used_when_its_failure_comes_late(self):
        harness = make_harness(depth=2, max_num_batched_tokens=32)
        bad = harness.add(range(20))
        harness.fail(bad)
        harness.launch()
        harness.abort([bad.handle])
        harness.deliver()
        same = harness.add(range(20))
        assert sizes(harness) == {same.handle: 20}
        assert same.num_cached == 0
        harness.drain()

    def test_a_row_that_fails_on_blocks_of_the_cache_takes_them_along(self):
        """The request that wrote them may have left before its failure was noticed."""
        harness = make_harness(max_num_batched_tokens=32)
        harness.add(range(20), max_tokens=1)
        sizes(harness)
        bad = harness.add(range(20))
        harness.fail(bad)
        assert sizes(harness) == {bad.handle: 4}
        same = harness.add(range(20))
        assert sizes(harness) == {same.handle: 20}
        harness.drain()


@pytest.mark.parametrize("position", range(3, 11))
def test_a_round_caches_what_it_computed_and_no_more(position):
    """The token that ends a request is not computed, though its round had a slot for it: its block is not whole."""
    solo = make_harness(max_model_len=64)
    alone = solo.add([1, 2, 3], 20)
    solo.drain()
    harness = make_harness(max_model_len=64, round_tokens=8)
    stop_id = alone.token_ids[position]
    first = harness.add([1, 2, 3], 20, stop_token_ids=[stop_id])
    harness.drain()
    known = [1, 2, 3, *first.token_ids]
    again = harness.add([*known, 60, 61, 62, 63], 4)
    harness.drain()
    assert again.num_cached == (len(known) - 1) // 4 * 4


def test_a_running_request_decodes_every_step_beside_prompts_with_logprobs():
    """Twenty such prompts arrive at once; a neighbour's stream must not stop for them."""
    harness = make_harness(
        max_num_seqs=24, num_blocks=2000, max_model_len=256, max_num_batched_tokens=1024
    )
    neighbour = harness.add([1, 2, 3], max_tokens=60)
    harness.turn()
    prompts = [[(i + j) % 40 for j in range(180)] for i in range(20)]
    asking = [harness.add(prompt, max_tokens=1, prompt_logprobs=20) for prompt in prompts]
    handles = {entry.handle for entry in asking}
    while any(entry.is_live for entry in asking):
        tokens = sizes(harness)
        assert tokens[neighbour.handle] == 1
        assert (
            sum(tokens[handle] for handle in handles & tokens.keys()) <= MAX_PROMPT_LOGPROB_TOKENS
        )
    assert neighbour.is_live
    harness.drain()


class TestLongPrompts:
    """A prompt of many steps leaves room for much shorter ones, and for every row that decodes."""

    def beside(self, *, depth: int = 1, longs: int = 1) -> SchedulerHarness:
        """Prompts of 1 900 tokens, 16 tokens a step, and a row that decodes."""
        harness = make_harness(
            max_model_len=2048,
            max_num_batched_tokens=16,
            num_blocks=2100,
            max_num_seqs=6,
            depth=depth,
        )
        harness.add(range(3), 40)
        for number in range(longs):
            harness.add([number, *range(30)] * 61, 2)
        for _ in range(4):
            harness.turn()
        return harness

    @pytest.mark.parametrize("longs", [1, 3])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_short_one_has_its_first_token_within_a_few_steps(self, depth, longs):
        harness = self.beside(depth=depth, longs=longs)
        short = harness.add([7, 8, 9, 7, 8, 9], 3)
        for _ in range(5 + depth):
            harness.turn()
        assert short.token_ids
        harness.drain()

    def test_rows_that_decode_run_in_every_step(self):
        harness = self.beside()
        first = harness.outputs[-1].step_id
        harness.add([7, 8, 9] * 4, 9)
        for _ in range(20):
            harness.turn()
        decoding = [output.row.tolist() for output in harness.outputs if output.step_id > first]
        assert all(0 in rows for rows in decoding)
        harness.drain()

    def test_prompts_of_like_length_come_one_after_another(self):
        harness = make_harness(
            max_model_len=256, max_num_batched_tokens=16, num_blocks=200, max_num_seqs=4
        )
        harness.add(range(64), 2)
        harness.add(range(100, 160), 2)
        assert sizes(harness) == {1: 16}

    def test_alone_a_long_one_has_the_whole_step(self):
        harness = make_harness(
            max_model_len=2048, max_num_batched_tokens=16, num_blocks=600, max_num_seqs=4
        )
        harness.add(list(range(60)) * 30, 2)
        assert [sizes(harness) for _ in range(1)] == [{1: 16}]
