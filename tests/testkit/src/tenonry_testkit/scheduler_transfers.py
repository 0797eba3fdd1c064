"""KV connector tests of the scheduler suite. Test process."""

from __future__ import annotations

from typing import Any, Protocol

import hypothesis.strategies as st
import pytest

from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.scenarios_blocks import blocks_come_from_elsewhere
from tenonry_testkit.scenarios_loads import (
    a_failed_row_spoils_no_load,
    arrivals_share_a_step,
    loads_are_aborted,
    loads_fail_around_a_reset,
    loads_without_end,
    resets_are_final,
)
from tenonry_testkit.scenarios_transfers import (
    METHODS,
    a_load_without_end_is_given_up,
    a_reset_reaches_waiting_rows,
    aborted_loads_are_awaited,
    blocks_are_kept,
    blocks_wait_for_both_transfers,
    failed_loads_cost_little,
    faults_name_the_connector,
    loads_are_used,
    loads_wait_for_blocks,
    names_are_the_same,
    steps_are_no_time,
)
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import sends, storms


class _Engines(Protocol):
    """Any suite with engines around the scheduler under test."""

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...

    def _search(self, strategy: Any, check: Any, examples: int = 12) -> None: ...


class TransferSuite:
    """Part of `SchedulerContract`. A scheduler without KV connectors passes: it never calls one."""

    @pytest.mark.parametrize(
        "how", ["sync", "async", "failing sync", "failing async", "always failing async"]
    )
    def test_a_kv_connector_changes_no_token(self: _Engines, how: str) -> None:
        """Blocks that are loaded, late, or missing, yield the tokens of a run that computes everything."""
        self._search(
            st.tuples(st.integers(1, 3), storms(sends(families=2, max_length=24), aborts=True)),
            lambda drawn: blocks_come_from_elsewhere(self.harness, how, *drawn),
            14,
        )

    def test_a_reset_reaches_no_connector(self: _Engines) -> None:
        """A KV connector receives no block computed before a reset, even if loads are in flight."""
        resets_are_final(self.harness)
        loads_fail_around_a_reset(self.harness)
        for depth in (1, 2):
            a_reset_reaches_waiting_rows(self.harness, depth)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_load_without_end_costs_no_request(self: _Engines, depth: int) -> None:
        """A KV load that does not end delays its request only, and its blocks stay reserved until it ends."""
        arrivals_share_a_step(self.harness, depth)
        loads_without_end(self.harness, depth)
        a_load_without_end_is_given_up(self.harness, depth)
        blocks_wait_for_both_transfers(self.harness, depth)
        aborted_loads_are_awaited(self.harness, depth)

    @pytest.mark.parametrize("depth", [2, 3])
    def test_a_failed_row_spoils_no_load(self: _Engines, depth: int) -> None:
        """A request that shares blocks of a row does not run on them once the row has failed."""
        a_failed_row_spoils_no_load(self.harness, depth)

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_loads_are_used_and_failed_ones_cost_little(self: _Engines, depth: int) -> None:
        """A request starts with what was loaded in time; a load that fails restarts no unrelated request."""
        loads_are_used(self.harness, depth)
        loads_are_aborted(self.harness, depth)
        loads_wait_for_blocks(self.harness, depth)
        failed_loads_cost_little(self.harness, depth)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_blocks_that_are_kept_for_ever_cost_no_request(self: _Engines, depth: int) -> None:
        """A connector that keeps blocks gets no others; with too few left the engine ends, and names it."""
        blocks_are_kept(self.harness, depth)
        steps_are_no_time(self.harness, depth)

    def test_a_connector_gets_the_same_names_in_every_engine(self: _Engines) -> None:
        """Names of blocks depend on their content alone, so that a store outlives the engine."""
        names_are_the_same(self.harness)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_failing_connector_is_named(self: _Engines, method: str) -> None:
        """An exception in a KV connector names it and its method, not the scheduler that called it."""
        faults_name_the_connector(self.harness, method)
