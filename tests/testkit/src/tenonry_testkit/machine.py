"""A hypothesis state machine over one scheduler: any engine behaviour, in any order. Test process."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import (
    Abort,
    Deliver,
    FailRow,
    Launch,
    Reset,
    Send,
    Tick,
    Turn,
    play,
    send,
    sends,
)

SIZES = (  # (max_num_seqs, max_num_batched_tokens, num_blocks): cramped, ordinary, and a pool of one sequence
    (2, 5, 0),
    (4, 16, 12),
    (4, 7, 0),
    (1, 32, 9),
)
REQUESTS = sends(max_output=16)
ENDINGS = ("client leaves", "client leaves", "row fails", "row fails", "all leave")


class SchedulerMachine(RuleBasedStateMachine):
    """Every rule leaves the harness in a state that its checks accept; the end is a full drain.

    Sizes are drawn; the rest of the engine is as in `spec`.
    """

    make_harness: ClassVar[Callable[[HarnessSpec], SchedulerHarness]]
    spec: ClassVar[HarnessSpec]
    harness: SchedulerHarness

    @initialize(size=st.sampled_from(SIZES))
    def start(self, size: tuple[int, int, int]) -> None:
        """Start an engine."""
        seqs, budget, blocks = size
        spec = dataclasses.replace(self.spec, max_num_seqs=seqs, max_num_batched_tokens=budget)
        num_blocks = max(blocks, spec.least_blocks())
        self.harness = type(self).make_harness(dataclasses.replace(spec, num_blocks=num_blocks))

    @rule(
        asked=st.lists(REQUESTS, min_size=1, max_size=3),
        copies=st.integers(1, 3),
        turns=st.integers(0, 6),
    )
    def requests_arrive(self, asked: list[Send], copies: int, turns: int) -> None:
        """Clients send requests, some identical, so that rows of one step share computed blocks."""
        for request in asked:
            for _ in range(copies):
                send(self.harness, request)
        play(self.harness, [Turn(turns)])

    @rule(launches=st.integers(0, 3), results=st.integers(0, 3), turns=st.integers(0, 9))
    def engine_works(self, launches: int, results: int, turns: int) -> None:
        """Launch steps ahead, deliver results late, then continue normally."""
        play(self.harness, [*[Launch()] * launches, *[Deliver()] * results, Turn(turns)])

    @rule(which=st.integers(0, 7), how=st.sampled_from(ENDINGS))
    @precondition(lambda self: self.harness.ledger.live)
    def something_ends(self, which: int, how: str) -> None:
        """Abort a request at any stage, or fail it in the worker; rarely, abort all."""
        play(
            self.harness,
            [
                FailRow(which)
                if how == "row fails"
                else Abort(None if how == "all leave" else which)
            ],
        )

    @rule(running=st.booleans(), turns=st.integers(0, 3))
    def cache_is_reset(self, running: bool, turns: int) -> None:
        """Clear the prefix cache."""
        play(self.harness, [Turn(turns), Reset(running)])

    @rule(seconds=st.sampled_from((0.01, 60.0)))
    def time_passes(self, seconds: float) -> None:
        """Advance the clock."""
        play(self.harness, [Tick(seconds), Turn(1)])

    def teardown(self) -> None:
        """Run to the end, unless a rule has failed already: one error is enough."""
        if hasattr(self, "harness") and sys.exc_info()[0] is None:
            self.harness.drain()


def machine_for(
    make_harness: Callable[[HarnessSpec], SchedulerHarness], spec: HarnessSpec
) -> type[SchedulerMachine]:
    """A machine class whose engines are made by `make_harness`."""
    return type(
        "SchedulerMachine",
        (SchedulerMachine,),
        {"make_harness": staticmethod(make_harness), "spec": spec},
    )
