"""Tests of the scheduler suite for numbers, lengths and limits, with a run each. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import hypothesis.strategies as st
import pytest

from tenonry.step import Adapter
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.scenarios_answers import (
    pooled_results_are_delivered,
    wrong_answers_are_rejected,
)
from tenonry_testkit.scenarios_endings import a_crowd_waits, rounds_are_played
from tenonry_testkit.scenarios_engines import traffic_is_served
from tenonry_testkit.scenarios_lengths import (
    lengths_are_kept_apart,
    nothing_waits_for_ever,
    rows_restart,
)
from tenonry_testkit.scenarios_memory import nothing_is_kept
from tenonry_testkit.scenarios_numbers import (
    ADAPTED,
    OUTGROWS,
    drafts_add_up,
    loads_add_up,
    numbers_add_up,
)
from tenonry_testkit.scenarios_rounds import rounds_have_their_length
from tenonry_testkit.search import effort
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Op, Send, Turn, sends, storms

ALWAYS_FAILS = {"asynchronous": True, "fail_loads": 10**9}
ADAPTED_LOADS = {"asynchronous": True, "config": (("max_loras", 2),)}
LEAST_ENGINES, MOST_ENGINES = 16, 45
WAVES = st.lists(storms(sends(families=2, max_length=28), waves=4), min_size=2, max_size=2)
LOADED: list[Op] = [
    Send(family=1, length=21),
    Send(family=2, length=9),
    Turn(3),
    Send(family=1, length=13),
    Send(family=3, length=3),
    Send(family=4, length=9, prompt_logprobs=1),
    *(
        Send(family=number, length=17, adapter=Adapter("name", f"{number}"))
        for number in (5, 6, 7, 5)
    ),
]
SHORT = sends(families=2, max_length=8, max_output=24)


class _Engines(Protocol):
    """Any suite with engines around the scheduler under test."""

    caches_prefixes: ClassVar[bool | None]
    effort: ClassVar[float]

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...

    def _search(self, strategy: Any, check: Any, examples: int = 12) -> None: ...


class NumberSuite:
    """Part of `SchedulerContract`."""

    caches_prefixes: ClassVar[bool | None] = None
    effort: ClassVar[float] = 1.0

    @pytest.mark.parametrize("depth", [1, 2])
    def test_statistics_add_up_to_what_happened(self: _Engines, depth: int) -> None:
        """Each counter counts since the previous call: steps, preemptions, cached tokens; used blocks and adapters."""
        spec = HarnessSpec(depth=depth, num_blocks=14)
        numbers_add_up(self.harness, spec, [OUTGROWS, OUTGROWS])
        numbers_add_up(
            self.harness, dataclasses.replace(spec, enable_prefix_caching=False), [OUTGROWS]
        )
        adapters = dataclasses.replace(spec, config=(("max_loras", 2),))
        numbers_add_up(self.harness, adapters, [ADAPTED, ADAPTED])
        self._search(WAVES, lambda waves: numbers_add_up(self.harness, adapters, waves), 6)

    @pytest.mark.parametrize(
        "how",
        [
            {},
            {"asynchronous": True},
            {"num_undecided": 3},
            {"block_size": 1},
            ALWAYS_FAILS,
            ADAPTED_LOADS,
        ],
    )
    def test_loads_add_up(self: _Engines, how: dict[str, Any]) -> None:
        """Tokens loaded by a KV connector are counted once, separate from prefix cache hits."""
        loads_add_up(self.harness, [LOADED, LOADED[1:]], **how)
        self._search(WAVES, lambda waves: loads_add_up(self.harness, waves, **how), 3)

    def test_drafts_add_up(self: _Engines) -> None:
        """The statistics count the drafts that the worker reports."""
        for config in ((), (("drafter", "ngram"),)):
            for most in (2, 6):
                rounds_are_played(self.harness, round_tokens=most, config=config)
        decodes: list[Op] = [Send(family=number, max_tokens=20 + number) for number in range(3)]
        drafts_add_up(self.harness, [decodes, decodes])
        waves = st.lists(storms(SHORT, waves=3), min_size=2, max_size=2)
        self._search(waves, lambda drawn: drafts_add_up(self.harness, drawn), 4)

    def test_rounds_have_their_length(self: _Engines) -> None:
        """A scheduler of the library runs several tokens in a step as the time per token and the queue permit."""
        rounds_have_their_length(self.harness)

    def test_what_never_fits_is_rejected_alone(self: _Engines) -> None:
        """An impossible request is rejected with RequestError, and one at the limit is served."""
        nothing_waits_for_ever(self.harness)

    def test_length_classes_are_kept_apart(self: _Engines) -> None:
        """Where K depends on the length of the sequence, prefixes are shared within a class only."""
        lengths_are_kept_apart(self.harness, finds=bool(self.caches_prefixes))

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_rows_restart_for_another_length_class(self: _Engines, depth: int) -> None:
        """Where K of a sequence changes with its length, its row is preempted before, and recomputed."""
        rows_restart(self.harness, depth)

    def test_results_that_do_not_fit_are_rejected(self: _Engines) -> None:
        """Too few or too many tokens, rows that are missing, unasked or named twice: PluginError."""
        wrong_answers_are_rejected(self.harness)

    @pytest.mark.parametrize("depth", [1, 2])
    def test_pooled_results_go_to_their_requests(self: _Engines, depth: int) -> None:
        """A request ends with the vector that the worker pooled in its last step."""
        pooled_results_are_delivered(self.harness, depth)

    def test_ended_requests_leave_nothing_behind(self: _Engines) -> None:
        """However a request ends, the scheduler refers neither to it nor to its handle any more."""
        nothing_is_kept(self.harness)

    def test_any_traffic_in_any_engine(self: _Engines) -> None:
        """Larger engines and programs than in searches, with all features together; the statistics add up."""
        wanted = round(MOST_ENGINES * self.effort * effort())
        for number in range(max(LEAST_ENGINES, wanted)):
            traffic_is_served(self.harness, number)

    def test_a_crowd_waits_and_leaves(self: _Engines) -> None:
        """Many queued requests, most of them aborted; the others are served."""
        for seqs, budget in ((4, 16), (16, 64)):
            spec = HarnessSpec(max_num_seqs=seqs, max_num_batched_tokens=budget, num_blocks=60)
            a_crowd_waits(self.harness(spec))
