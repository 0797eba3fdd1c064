"""A hypothesis state machine over one scheduler: anything the engine may do, in any order. Test process."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tenonry_testkit.rig import Rig
from tenonry_testkit.spec import RigSpec
from tenonry_testkit.traffic import Send, send, sends

SIZES = (  # (max_num_seqs, max_num_batched_tokens, num_blocks): cramped, ordinary, and a pool of one sequence
    (2, 5, 0),
    (4, 16, 12),
    (4, 7, 0),
    (1, 32, 9),
)


def machine_for(make_rig: Callable[[RigSpec], Rig], spec: RigSpec) -> type[RuleBasedStateMachine]:
    """A state machine class whose rigs come from `make_rig`; sizes are drawn, the rest is as in `spec`."""
    import dataclasses

    class SchedulerMachine(RuleBasedStateMachine):
        """Every rule leaves the rig in a state that its checks accept; the end is a full drain."""

        rig: Rig

        @initialize(size=st.sampled_from(SIZES))
        def start(self, size: tuple[int, int, int]) -> None:
            """An engine."""
            seqs, budget, blocks = size
            self.rig = make_rig(
                dataclasses.replace(spec, max_num_seqs=seqs, max_num_batched_tokens=budget, num_blocks=blocks)
            )

        @rule(asked=sends())
        def request_arrives(self, asked: Send) -> None:
            """A client asks."""
            send(self.rig, asked)

        @rule(asked=sends(), count=st.integers(2, 5))
        def burst_arrives(self, asked: Send, count: int) -> None:
            """The same prompt several times at once: rows of one step share what they compute."""
            for _ in range(count):
                send(self.rig, asked)

        @rule()
        @precondition(lambda self: self.rig.can_launch)
        def step_is_launched(self) -> None:
            """The engine has room for one more step."""
            self.rig.launch()

        @rule()
        @precondition(lambda self: self.rig.in_flight)
        def result_arrives(self) -> None:
            """The oldest step is answered."""
            self.rig.deliver()

        @rule(times=st.integers(1, 8))
        def engine_turns(self, times: int) -> None:
            """Work as usual."""
            for _ in range(times):
                self.rig.turn()

        @rule(which=st.integers(0, 7))
        @precondition(lambda self: self.rig.ledger.live)
        def client_leaves(self, which: int) -> None:
            """One request is aborted, wherever it stands."""
            live = self.rig.ledger.live
            self.rig.abort([live[which % len(live)].handle, 999_999])

        @rule()
        def everybody_leaves(self) -> None:
            """All requests are aborted."""
            self.rig.abort(None)

        @rule(running=st.booleans())
        def cache_is_reset(self, running: bool) -> None:
            """An operator forgets the prefix cache."""
            self.rig.reset_prefix_cache(reset_running_requests=running)

        @rule(which=st.integers(0, 7))
        @precondition(lambda self: self.rig.ledger.live)
        def row_fails(self, which: int) -> None:
            """The worker cannot go on with one request."""
            live = self.rig.ledger.live
            self.rig.fail(live[which % len(live)])

        @rule(seconds=st.sampled_from((0.01, 60.0)))
        def time_passes(self, seconds: float) -> None:
            """The clock moves."""
            self.rig.clock.advance(seconds)

        def teardown(self) -> None:
            if hasattr(self, "rig"):
                self.rig.drain()

    return SchedulerMachine
