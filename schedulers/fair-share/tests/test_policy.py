"""The bound of `fair-share`, for random queues, and what it keeps of clients that are gone."""

from __future__ import annotations

import heapq
import itertools
import tracemalloc
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry_policy_fair_share import FairShare, FairShareOptions
from tenonry_testkit.scheduler import SchedulerContract

LENGTHS = st.lists(st.integers(1, 4000), min_size=1, max_size=30)


@pytest.mark.slow
class TestContract(SchedulerContract):
    scheduler = "batching"
    policy = "tenonry_policy_fair_share:FairShare"
    effort = 0.05


class Queue:
    """The waiting queue as the scheduler keeps it: by the policy's order, ties by arrival."""

    def __init__(self, **options: str) -> None:
        self.policy = FairShare(FairShareOptions(**options))
        self.waiting: list = []
        self._arrivals = itertools.count()

    def add(self, client: str, tokens: int, tag: str = "tenant") -> None:
        request = SimpleNamespace(tags={tag: client}, max_total_tokens=tokens, key=None)
        request.key = self.policy.order(request)
        heapq.heappush(self.waiting, (request.key, next(self._arrivals), request))

    def start(self) -> SimpleNamespace:
        *_, request = heapq.heappop(self.waiting)
        assert self.policy.admit(request, None)
        return request


@given(LENGTHS, LENGTHS, st.booleans())
def test_clients_that_wait_differ_by_one_request_of_each(first, second, interleaved):
    queue = Queue()
    sends = [("a", tokens) for tokens in first], [("b", tokens) for tokens in second]
    mixed = itertools.zip_longest(*sends) if interleaved else sends
    for client, tokens in filter(None, itertools.chain(*mixed)):
        queue.add(client, tokens)
    got, left = {"a": 0, "b": 0}, {"a": len(first), "b": len(second)}
    while all(left.values()):
        request = queue.start()
        client = request.tags["tenant"]
        got[client] += request.max_total_tokens
        left[client] -= 1
        assert abs(got["a"] - got["b"]) <= max(first) + max(second)


@given(st.integers(1, 500), st.integers(1, 4000))
def test_client_that_comes_later_waits_for_one_request(flood, tokens):
    queue = Queue()
    for _ in range(flood):
        queue.add("flood", tokens)
    queue.start()
    queue.add("later", tokens)
    started = [queue.start().tags["tenant"] for _ in range(min(2, len(queue.waiting)))]
    assert "later" in started


def test_client_alone_is_served_in_order():
    queue = Queue(tag="team")
    for tokens in (9, 2, 5):
        queue.add("a", tokens, tag="team")
    assert [queue.start().max_total_tokens for _ in range(3)] == [9, 2, 5]


def test_clients_that_are_gone_cost_no_memory():
    """The first request that starts at a later virtual time drops clients whose finish tags have passed."""
    queue = Queue()
    tracemalloc.start()
    sizes = []
    for number in range(20_000):
        queue.add(f"client-{number}", 10)
        queue.add(f"client-{number}", 10)
        queue.start()
        queue.start()
        if number in (5_000, 19_999):
            sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[1] < sizes[0] + 100_000
