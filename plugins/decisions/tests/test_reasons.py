"""Each step of a waiting request has one reason, and it is the right one."""

from __future__ import annotations

import pytest
from decision_runs import Asked, run

from tenonry_decisions.explain import describe
from tenonry_decisions.reasons import Reason, Reasons
from tenonry_scheduler_batching.policies import FcfsPolicy, PriorityPolicy
from tenonry_scheduler_static import StaticScheduler


class NoB(FcfsPolicy):
    def admit(self, request, state):
        return request.request_id != "b" or state.num_running == 0


def spans(found, name):
    recording = found.recording
    return Reasons(recording).spans(recording.find(name))


def test_every_waiting_step_has_a_reason(busy):
    recording = busy.recording
    reasons = Reasons(recording)
    for track in recording.tracks:
        covered = [step for span in reasons.spans(track) for step in range(span.start, span.stop)]
        waited = [step for start, stop in reasons.waits(track) for step in range(start, stop)]
        assert covered == waited


def test_rows():
    found = run([Asked(0, "a", 4, 6), Asked(0, "b", 4, 6)], max_num_seqs=1)
    assert spans(found, "b") == [(0, 6, Reason.ROWS, "")]


def test_budget():
    found = run([Asked(0, "a", 32, 6), Asked(0, "b", 4, 6)], max_num_batched_tokens=8)
    assert spans(found, "b")[0][2:] == (Reason.BUDGET, "")


def test_blocks():
    found = run(
        [Asked(0, "a", 16, 8), Asked(0, "b", 36, 8)], num_blocks=12, max_num_batched_tokens=64
    )
    assert [span.reason for span in spans(found, "b")] == [Reason.BLOCKS]
    assert "KV blocks were free, and it needs 9" in describe(
        found.recording, found.recording.find("b")
    )


def test_preemption(busy):
    found = spans(busy, "late-0") + spans(busy, "late-1")
    assert (Reason.BLOCKS, "preemption") in [(span.reason, span.by) for span in found]


def test_held_by_a_policy_and_the_one_behind_it():
    found = run([Asked(0, "a", 4, 6), Asked(1, "b", 4, 6), Asked(2, "c", 4, 6)], policy=NoB)
    assert spans(found, "b") == [(1, 6, Reason.HELD, "policy 'mine'")]
    assert spans(found, "c") == [(2, 6, Reason.ORDER, "b")]


def test_order_is_that_of_the_policy():
    asked = [Asked(0, "a", 4, 6), Asked(1, "late", 40, 6, 5), Asked(1, "urgent", 40, 6, 1)]
    found = run(asked, policy=PriorityPolicy, num_blocks=12, max_num_batched_tokens=64)
    assert (Reason.ORDER, "urgent") in [span[2:] for span in spans(found, "late")]
    assert Reason.ORDER not in [span.reason for span in spans(found, "urgent")]


def test_a_scheduler_that_starts_nothing_is_named():
    found = run([Asked(0, "a", 4, 6), Asked(1, "b", 4, 6)], scheduler=Late)
    assert (Reason.SCHEDULER, "batching") in [(span.reason, span.by) for span in spans(found, "b")]


class Late(StaticScheduler):
    """Starts one request at a time, whatever is free."""

    def choose(self, step):
        step.run_ready()
        for request in step.waiting:
            if step.num_running:
                break
            step.run(request)


def test_unknown_requests_are_named_with_known_ones(busy):
    with pytest.raises(LookupError, match=r"'nobody' is not in the records; the latest: .*late-3"):
        busy.recording.find("nobody")
    with pytest.raises(LookupError, match=r"'late' is part of 4 ids"):
        busy.recording.find("late")
