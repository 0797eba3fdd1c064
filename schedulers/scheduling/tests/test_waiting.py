"""The waiting queue compared with a sorted list, and its cost."""

from __future__ import annotations

import types

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tenonry_scheduling import WaitingQueue


def make_request(
    handle: int, key: object = None, arrival: int | None = None
) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        handle=handle, key=key, arrival=handle if arrival is None else arrival
    )


def by_key(request):
    return request.wanted


class QueueMachine(RuleBasedStateMachine):
    """Whatever enters and leaves, the order is that of (key, arrival)."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WaitingQueue(lambda request: request.wanted)
        self.members: list[types.SimpleNamespace] = []
        self.outside: list[types.SimpleNamespace] = []
        self.count = 0

    @rule(key=st.integers(0, 4))
    def arrives(self, key):
        self.count += 1
        request = types.SimpleNamespace(handle=self.count, arrival=self.count, key=None, wanted=key)
        self.queue.add(request)
        self.members.append(request)

    @rule(which=st.integers(0, 99))
    @precondition(lambda self: self.members)
    def is_removed(self, which):
        request = self.members.pop(which % len(self.members))
        self.queue.discard(request)
        self.outside.append(request)

    @rule(which=st.integers(0, 99))
    @precondition(lambda self: self.outside)
    def comes_back(self, which):
        request = self.outside.pop(which % len(self.outside))
        request.wanted = -1  # the key it got first counts
        self.queue.add(request)
        self.members.append(request)

    @rule(count=st.integers(0, 5))
    def first_ones_start(self, count):
        for request in self.queue:
            if count == 0:
                break
            count -= 1
            self.queue.discard(request)
            self.members.remove(request)
            self.outside.append(request)

    @invariant()
    def order_is_right(self):
        expected = sorted(self.members, key=lambda request: (request.key, request.arrival))
        assert list(self.queue) == expected
        assert next(iter(self.queue), None) is (expected[0] if expected else None)
        assert len(self.queue) == len(expected)
        for request in (*self.members, *self.outside):
            assert (request in self.queue) == (request in self.members)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(stateful_step_count=40)


def test_requests_are_never_compared_when_one_comes_back_before_its_old_entry_was_dropped():
    queue = WaitingQueue(lambda request: 0)
    request = make_request(1)
    for _ in range(3):
        queue.add(request)
        queue.discard(request)
    queue.add(request)
    assert list(queue) == [request]


def test_a_loop_sees_who_enters_while_it_runs():
    queue = WaitingQueue(lambda request: request.arrival)
    first, second, late = make_request(1), make_request(2), make_request(3)
    queue.add(first)
    queue.add(second)
    seen = []
    for request in queue:
        seen.append(request)
        if request is first:
            queue.add(late)
    assert seen == [first, second, late]
    assert list(queue) == seen


def test_a_loop_that_raises_loses_no_request():
    queue = WaitingQueue(lambda request: request.arrival)
    for handle in range(5):
        queue.add(make_request(handle))

    def stumble():
        for request in queue:
            if request.handle == 3:
                raise KeyError(request.handle)

    with pytest.raises(KeyError):
        stumble()
    assert [request.handle for request in queue] == [0, 1, 2, 3, 4]


def test_looking_at_the_head_of_a_long_queue_does_not_look_at_the_rest():
    """Design §5: the waiting queue may hold a million requests without the step noticing."""
    asked = []
    queue = WaitingQueue(lambda request: asked.append(request.handle) or request.arrival)
    for handle in range(20_000):
        queue.add(make_request(handle))
    asked.clear()
    touched = 0
    for request in queue:
        touched += 1
        queue.discard(request)
        if touched == 3:
            break
    assert (touched, asked, len(queue)) == (3, [], 19_997)
    assert next(iter(queue)).handle == 3


def test_memory_of_the_removed_is_given_back():
    queue = WaitingQueue(lambda request: request.arrival)
    requests = [make_request(handle) for handle in range(1000)]
    for request in requests:
        queue.add(request)
    for request in requests[:990]:
        queue.discard(request)
    assert len(queue._heap) <= 2 * len(queue) + 64
    assert [request.handle for request in queue] == list(range(990, 1000))
