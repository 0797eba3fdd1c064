"""Order of jobs: between clients by their usage, within a client by size; no job starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry_helper_pool.queue import MAX_PASSED, FairQueue, Job


def any_job(_: Job) -> bool:
    return True


@pytest.fixture
def queue():
    return FairQueue()


def pushed(queue, *jobs: tuple) -> list[Job]:
    made = [Job(*values) for values in jobs]
    for job in made:
        queue.push(job)
    return made


def drained(queue, seconds=lambda job: 1.0) -> list[tuple[str, int]]:
    order = []
    while (job := queue.take(any_job)) is not None:
        order.append((job.client, job.cost))
        queue.done(job, seconds(job))
    return order


def test_a_client_with_many_jobs_is_interleaved_with_others(queue):
    pushed(queue, *(("a", 9) for _ in range(4)), ("b", 1), ("c", 5))
    assert drained(queue)[:3] == [("a", 9), ("b", 1), ("c", 5)]


def test_the_client_that_used_least_is_next(queue):
    pushed(queue, ("a", 8), ("a", 8), *(("b", 1) for _ in range(12)))
    order = drained(queue, lambda job: job.cost / 8)
    assert order.index(("a", 8), 1) == 9  # eight of b's take as long as one of a's


def test_small_jobs_of_a_client_come_first(queue):
    pushed(queue, ("a", 3), ("a", 1), ("a", 2))
    assert drained(queue) == [("a", 1), ("a", 2), ("a", 3)]


def test_the_oldest_is_passed_by_so_many(queue):
    pushed(queue, ("a", 100), *(("a", 1) for _ in range(2 * MAX_PASSED)))
    assert drained(queue).index(("a", 100)) == MAX_PASSED


def test_a_pause_earns_no_credit(queue):
    pushed(queue, *(("a", 1) for _ in range(20)))
    for _ in range(10):
        job = queue.take(any_job)
        queue.done(job, 1.0)
    pushed(queue, *(("b", 1) for _ in range(10)))
    order = [client for client, _ in drained(queue)]
    assert order[:6].count("a") == 3


def test_jobs_that_are_not_accepted_stay(queue):
    (long, _) = pushed(queue, ("a", 1, True), ("a", 2))
    assert queue.take(lambda job: not job.is_long).cost == 2
    assert queue.take(lambda job: not job.is_long) is None
    assert queue.take(any_job) is long
    assert len(queue) == 0


def test_a_removed_job_is_not_taken(queue):
    first, second = pushed(queue, ("a", 1), ("a", 2))
    assert queue.remove(first)
    assert not queue.remove(first)
    assert queue.take(any_job) is second
    assert not queue.remove(second)
    assert queue.size_of("a") == queue.running_of("a") == 1
    queue.done(second, 0.0)
    assert queue.size_of("a") == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=40))
def test_every_job_is_taken_once_and_clients_are_forgotten(jobs):
    queue = FairQueue()
    pushed(queue, *jobs)
    assert sorted(drained(queue)) == sorted(jobs)
    assert len(queue) == 0
    assert all(queue.size_of(client) == 0 for client in "abc")
