"""Order and victims of `deadline`, and the errors of invalid tags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry.errors import RequestError
from tenonry_policy_deadline import Deadline, DeadlineOptions
from tenonry_testkit.scheduler import SchedulerContract


def request(arrival_time: float, arrival: int = 0, **tags: Any) -> SimpleNamespace:
    return SimpleNamespace(arrival_time=arrival_time, arrival=arrival, tags=tags)


@pytest.mark.slow
class TestContract(SchedulerContract):
    scheduler = "batching"
    policy = "tenonry_policy_deadline:Deadline"
    effort = 0.05


def test_earliest_deadline_is_first_and_latest_the_victim():
    policy = Deadline(DeadlineOptions())
    late, soon, plain = request(0.0, deadline=90.0), request(5.0, deadline="2"), request(1.0)
    assert sorted([late, soon, plain], key=policy.order) == [soon, plain, late]
    assert policy.victim([soon, late, plain]) is late


def test_youngest_of_equal_deadlines_is_the_victim():
    policy = Deadline(DeadlineOptions())
    older, younger = request(1.0, arrival=1), request(1.0, arrival=2)
    assert policy.victim([older, younger]) is younger
    assert policy.victim([younger, older]) is younger


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 100), st.floats(0.1, 9)), min_size=1))
def test_largest_lateness_is_the_least_possible(jobs):
    """On one machine: what is due until a deadline takes its sum of lengths in any order."""
    policy = Deadline(DeadlineOptions())
    queue = [(request(0.0, deadline=due), length) for _, due, length in jobs]
    elapsed, late = 0.0, 0.0
    for each, length in sorted(queue, key=lambda item: policy.order(item[0])):
        elapsed += length
        late = max(late, elapsed - each.tags["deadline"])
    needed = max(
        sum(length for other, length in queue if other.tags["deadline"] <= each.tags["deadline"])
        - each.tags["deadline"]
        for each, _ in queue
    )
    assert late <= max(needed, 0.0) + 1e-6  # no order can do better than `needed`


@pytest.mark.parametrize("value", ["soon", "", "nan", "inf", 0.0, -3.0, "1e999"])
def test_tag_that_is_no_number_of_seconds_fails_its_request(value: object):
    policy = Deadline(DeadlineOptions())
    with pytest.raises(RequestError, match=r"deadline=.* must be a positive number of seconds"):
        policy.order(request(0.0, deadline=value))


def test_tag_and_default_are_options():
    policy = Deadline(DeadlineOptions(tag="due", default=7.0))
    assert policy.order(request(1.0)) == 8.0
    assert policy.order(request(1.0, due=2.0)) == 3.0
