"""Tests of the scheduler suite for stop ids, min_tokens and delivered tokens. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import hypothesis.strategies as st

from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.scenarios_endings import requests_end_at_stop_ids
from tenonry_testkit.spec import CRAMPED, ROOMY, HarnessSpec
from tenonry_testkit.traffic import sends, storms


class _Engines(Protocol):
    """Any suite that plays programs in engines around the scheduler under test."""

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...

    def _storm(self, spec: HarnessSpec, programs: Any, examples: int = 12) -> None: ...


class EndingSuite:
    """Part of `SchedulerContract`."""

    def test_stop_ids_end_requests(self: _Engines) -> None:
        """The first stop id ends a request, is delivered, and is named."""
        asked = st.builds(
            dataclasses.replace,
            sends(max_output=12),
            stop_after=st.integers(0, 9),
            other_stop_ids=st.sampled_from((0, 0, 1, 4)),
        )
        self._storm(ROOMY, storms(asked))

    def test_min_tokens_hold_stop_ids_back(self: _Engines) -> None:
        """Before min_tokens no stop id ends a request, also if a worker samples one."""
        asked = st.builds(
            dataclasses.replace,
            sends(max_output=12),
            stop_after=st.integers(0, 5),
            min_tokens=st.integers(1, 12),
        )
        requests_end_at_stop_ids(self.harness)
        for holds_back in (True, False):  # workers may sample stop ids before
            spec = dataclasses.replace(ROOMY, holds_back_stop_ids=holds_back)
            self._storm(spec, storms(asked), 6)

    def test_delivered_tokens_count_as_output(self: _Engines) -> None:
        """A request that was partly answered elsewhere resumes at its position: limits, stop ids, min_tokens."""
        asked = st.builds(
            dataclasses.replace, sends(max_output=12), num_delivered=st.integers(1, 9)
        )
        self._storm(CRAMPED, storms(asked))
