"""Order of `shortest-first`, and the bound on how far a request is passed."""

from __future__ import annotations

from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tenonry.info import PluginRecord
from tenonry.plugin.checks import load_options
from tenonry_policy_shortest_first import ShortestFirst, ShortestFirstOptions
from tenonry_testkit.scheduler import SchedulerContract

REQUESTS = st.tuples(st.floats(0, 1000), st.integers(1, 100_000))
POLICY = "tenonry_policy_shortest_first:ShortestFirst"


def request(arrival_time: float, tokens: int) -> SimpleNamespace:
    return SimpleNamespace(arrival_time=arrival_time, max_total_tokens=tokens)


@pytest.mark.slow
class TestContract(SchedulerContract):
    scheduler = "batching"
    policy = POLICY
    effort = 0.05


def test_shorter_one_is_first():
    policy = ShortestFirst(ShortestFirstOptions())
    long, short = request(0.0, 900), request(1.0, 20)
    assert sorted([long, short], key=policy.order) == [short, long]


@given(REQUESTS, REQUESTS, st.floats(0, 100), st.floats(0.1, 1e4))
def test_later_one_passes_by_max_delay_at_most(earlier, later, max_delay, rate):
    policy = ShortestFirst(ShortestFirstOptions(max_delay=max_delay, tokens_per_second=rate))
    first, second = request(*earlier), request(*later)
    if first.arrival_time + max_delay <= second.arrival_time:
        assert policy.order(first) <= policy.order(second)


@given(st.floats(0, 1000), st.integers(1, 100_000), st.integers(1, 100_000))
def test_shorter_one_of_one_time_is_never_last(arrival_time, tokens, more):
    policy = ShortestFirst(ShortestFirstOptions())
    order = policy.order(request(arrival_time, tokens))
    assert order <= policy.order(request(arrival_time, tokens + more))


def test_invalid_option_is_named():
    record = PluginRecord(
        "scheduling_policy", "shortest-first", POLICY, options={"max_delay": "-1"}
    )
    with pytest.raises(Exception, match="max_delay"):
        load_options(record, ShortestFirst)
