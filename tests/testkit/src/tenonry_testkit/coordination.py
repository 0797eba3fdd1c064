"""The conformance suite of coordinations: each line of their contract is a test. Test process.

from tenonry_testkit.coordination import CoordinationContract

class TestMine(CoordinationContract):
    coordination = "my_package:MyCoordination"
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.interfaces.coordination import Coordination, FleetCompanion, RequestRouter
from tenonry.interfaces.plugin import PluginContext
from tenonry_testkit.coordinated_engines import EngineGroup, FakeFleet
from tenonry_testkit.load_balancer import make_request
from tenonry_testkit.roles import eventually
from tenonry_testkit.targets import resolve_target

BUSY = (10, 0)  # running and waiting requests
IDLE = (0, 0)
MAX_TAG = 1 << 64
NUM_PASSES = 30
PICKS = 64  # random picks: enough to include each of three engines


class CoordinationContract:
    """Subclass in a test module and name the `coordination`; `options` are its own.

    `config` holds further fields of EngineConfig. `patience_s`: a wait as long as this is a hang.
    """

    coordination: ClassVar[str | type[Coordination] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    patience_s: ClassVar[float] = 20.0

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> Coordination:
        """Build a fresh coordination like the kernel."""
        cls, options, _ = resolve_target("coordination", self.coordination, self.options)
        made: Coordination = cls(PluginContext(self._config(), options=options))
        return made

    def _config(self) -> EngineConfig:
        fields = {"data_parallel_size": 3, "data_parallel_sync_steps": 4, **self.config}
        return EngineConfig(model="fake", **fields)

    @contextlib.contextmanager
    def fleet(
        self, coordination: Coordination, *, lockstep: bool = False
    ) -> Iterator[tuple[FakeFleet, FleetCompanion]]:
        """Yield a fleet with three ready engines, and its companion."""
        fleet = FakeFleet(self._config(), lockstep=lockstep)
        with (
            contextlib.closing(coordination.fleet_companion(fleet)) as companion,
            zmq.Context() as context,
        ):
            started = companion.start(range(3), "")
            assert list(started) == [0, 1, 2], f"of the engines of this node it starts {started}"
            companion.check(range(3))
            companion.ready(context.socket(zmq.ROUTER))
            yield fleet, companion

    @contextlib.contextmanager
    def router(self, endpoints: str = "") -> Iterator[RequestRouter]:
        """Yield the router of one of two front ends, connected to the coordinator if there is one."""
        with zmq.Context() as context:
            router = self.build().router(context, None, 1, 2)
            with contextlib.closing(router):
                if endpoints:
                    router.connect(endpoints)
                yield router

    @contextlib.contextmanager
    def engines(self, *, lockstep: bool = False) -> Iterator[tuple[EngineGroup, RequestRouter]]:
        """Yield three engines with companions known to the coordinator, and the router of a front end."""
        coordination = self.build()
        with (
            self.fleet(coordination, lockstep=lockstep) as (_, companion),
            self.router(companion.endpoints) as router,
            EngineGroup(coordination, self._config(), companion) as group,
        ):
            for busy in range(len(group.engines)):
                self._expect_known(group, router, busy)
            self._report(group, -1)
            yield group, router

    def _expect_known(self, group: EngineGroup, router: RequestRouter, busy: int) -> None:
        """Wait until the router knows the busy engine; engines send after each step."""

        def is_known() -> bool:
            self._report(group, busy)
            return busy not in _picks(router, len(group.engines))

        eventually(is_known, self.patience_s)

    def _report(self, group: EngineGroup, busy: int) -> None:
        """Send outputs; only one engine is busy."""
        for engine in group.engines:
            engine.counts = BUSY if engine.index == busy else IDLE
            group.companions[engine.index].on_send(engine)

    # ------------------------------------------------------------------ routers
    def test_it_is_a_coordination_that_the_kernel_accepts(self) -> None:
        """It resolves, implements the interface in a version that the kernel drives, and can be built."""
        assert isinstance(self.build(), Coordination)

    def test_a_router_picks_a_candidate(self) -> None:
        """Also without a coordinator, while engines join, leave and die."""
        draw = random.Random(1)
        with self.router() as router:
            for number in range(200):
                candidates = sorted(draw.sample(range(6), draw.randint(1, 6)))
                chosen = _pick(router, number, candidates)
                assert chosen in candidates, f"{chosen!r} is none of {candidates}"
                router.sent(chosen)

    def test_a_tag_fits_into_the_header_of_a_request(self) -> None:
        """Before and after a request, and with a coordinator."""
        with self.router() as router:
            tags = [router.tag]
            _pick(router, 1, [0, 1])
            tags.append(router.tag)
        with self.engines() as (_, router):
            _pick(router, 1, [0, 1])
            tags.append(router.tag)
        assert all(isinstance(tag, int) and 0 <= tag < MAX_TAG for tag in tags), tags

    def test_a_router_is_closed_more_than_once(self) -> None:
        """The link to the engines may be closed by the owner and by an error."""
        with self.router() as router:
            router.close()

    def test_a_router_learns_the_load_of_all_front_ends(self) -> None:
        """A busy engine receives no unrelated requests while others are idle, even from a front end without requests
        there.
        """
        with self.engines() as (group, router):
            self._expect_known(group, router, 1)

    # ------------------------------------------------------------------ the coordinator
    def test_engines_in_lockstep_end_with_the_coordinator(self) -> None:
        """Another coordinator then starts, at a new rendezvous."""
        with self.fleet(self.build(), lockstep=True) as (fleet, companion):
            before = companion.endpoints, companion.rendezvous
            assert all(before)
            self._kill(companion)
            eventually(lambda: fleet.ends, self.patience_s)
            assert [index for index, _ in fleet.ends] == [-1]
            with pytest.raises(LaunchError):  # no start waits for it
                companion.check(range(3))
            companion.start(range(3), "")
            companion.check(range(3))
            after = companion.endpoints, companion.rendezvous
            assert not {*before} & {*after}, "they come back as before"

    def test_independent_engines_serve_on_without_the_coordinator(self) -> None:
        """Engines also start without it."""
        with self.fleet(self.build()) as (fleet, companion):
            assert not companion.rendezvous
            self._kill(companion)
            eventually(lambda: not companion.endpoints, self.patience_s)
            assert list(companion.start([3], "")) == [3]
            companion.check([3])
            assert fleet.ends == []

    def _kill(self, companion: FleetCompanion) -> None:
        for pid in companion.pids().values():
            os.kill(pid, signal.SIGKILL)

    def test_a_companion_is_closed_more_than_once(self) -> None:
        """Nothing of it remains running."""
        with self.fleet(self.build()) as (_, companion):
            companion.close()
            assert companion.pids() == {}

    # ------------------------------------------------------------------ companions
    def test_independent_engines_step_alone(self) -> None:
        """Without lockstep no request makes an engine step that has none."""
        with self.engines() as (group, router):
            router.sent(0)
            group.companions[0].on_request(router.tag)
            for companion in group.companions:
                companion.receive(True)
            assert not any(companion.must_step for companion in group.companions)

    @pytest.mark.parametrize("first", [0, 2])
    def test_engines_in_lockstep_pause_at_the_same_step(self, first: int) -> None:
        """A request of one engine makes all step, with dummy steps, until none has work; and again with the next
        request.
        """
        with self.engines(lockstep=True) as (group, router):
            for turn in itertools.count(1):
                _pick(router, turn, [first])
                router.sent(first)
                group.companions[first].on_request(router.tag)
                assert group.companions[first].must_step, "the engine with the request pauses"
                group.engines[first].work = NUM_PASSES
                group.run_until_paused(self.patience_s)
                passes = [engine.num_forward for engine in group.engines]
                assert len({*passes}) == 1, f"the engines paused after {passes} forward passes"
                assert passes[0] >= NUM_PASSES * turn
                if turn == 2:
                    break

    def test_a_front_end_wakes_engines_before_the_request_arrives(self) -> None:
        """The other engines need not wait for the receiver of the request."""
        with self.engines(lockstep=True) as (group, router):
            _pick(router, 1, [0])
            router.sent(0)

            def others_step() -> bool:
                for companion in group.companions[1:]:
                    companion.receive(True)
                return all(companion.must_step for companion in group.companions[1:])

            eventually(others_step, self.patience_s)
            assert not group.companions[0].must_step
            group.companions[0].on_request(router.tag)
            group.engines[0].work = 1
            group.run_until_paused(self.patience_s)

    def test_an_engine_that_sleeps_is_not_woken(self) -> None:
        """`receive(False)` starts no common steps."""
        with self.engines(lockstep=True) as (group, router):
            _pick(router, 1, [0])
            router.sent(0)
            asleep = group.companions[1]
            eventually(lambda: asleep.socket.poll(0), self.patience_s)
            asleep.receive(False)
            assert not asleep.must_step

    def test_an_engine_that_ends_waits_no_longer(self) -> None:
        """`keeps_waiting` is False: it stops waiting for unresponsive engines."""
        with self.engines(lockstep=True) as (group, router):
            group.companions[0].on_request(router.tag)
            group.engines[0].work = NUM_PASSES
            assert group.ends_alone(0, self.patience_s), "it waits for the other engines"


def _pick(router: RequestRouter, number: int, candidates: Sequence[int]) -> int:
    """Engine of a request without any common prefix."""
    request = make_request(number, random.randrange(1 << 30), 40)
    return router.pick(request, candidates, lambda index: 0)


def _picks(router: RequestRouter, count: int) -> set[int]:
    return {_pick(router, number, range(count)) for number in range(PICKS)}
