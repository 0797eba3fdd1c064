"""The suite of coordinations, over that of tenonry-scale-out and over broken ones."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import pytest

from tenonry.errors import LaunchError
from tenonry_scale_out.companion import ScaledFleet
from tenonry_scale_out.coordination import WaveCoordination
from tenonry_scale_out.router import BalancedRouter
from tenonry_scale_out.waves import WaveCompanion
from tenonry_testkit.coordination import CoordinationContract
from tenonry_testkit.outcomes import failing_tests

pytestmark = [pytest.mark.timeout(120), pytest.mark.integration]
PATIENCE_S = 3.0  # with broken ones


class TestScaleOut(CoordinationContract):
    coordination = "scale-out"


class Broken(WaveCoordination):
    """One with other parts."""

    Router: ClassVar[type[BalancedRouter]] = BalancedRouter
    Companion: ClassVar[type[WaveCompanion]] = WaveCompanion
    Fleet: ClassVar[type[ScaledFleet]] = ScaledFleet

    def router(self, context: Any, curve: Any, index: int, num_front_ends: int) -> Any:
        return self.Router(self.context.config, context, curve, index, num_front_ends)

    def companion(
        self, context: Any, spec: Any, metadata: Any, config: Any, keeps_waiting: Any
    ) -> Any:
        return self.Companion(context, spec, metadata, config, keeps_waiting)

    def fleet_companion(self, fleet: Any) -> Any:
        return self.Fleet(fleet)


class AnswersWithThePlace(Broken):
    caught_by = "test_a_router_picks_a_candidate"

    class Router(BalancedRouter):
        def pick(self, request, candidates, num_requests):
            return candidates.index(super().pick(request, candidates, num_requests))


class CountsDown(Broken):
    caught_by = "test_a_tag_fits_into_the_header_of_a_request"

    class Router(BalancedRouter):
        def pick(self, request, candidates, num_requests):
            chosen = super().pick(request, candidates, num_requests)
            self.tag = -1
            return chosen


class ClosesOnce(Broken):
    caught_by = "test_a_router_is_closed_more_than_once"

    class Router(BalancedRouter):
        is_open = True

        def close(self):
            assert self.is_open
            self.is_open = False
            super().close()


class KeepsLoadsToItself(Broken):
    caught_by = "test_a_router_learns_the_load_of_all_front_ends"

    class Companion(WaveCompanion):
        def on_send(self, engine):
            engine.counts = (0, 0)
            super().on_send(engine)


class MeetsAgain(Broken):
    caught_by = "test_engines_in_lockstep_end_with_the_coordinator"

    class Fleet(ScaledFleet):
        def start(self, indexes, address):
            try:
                return super().start(indexes, address)
            finally:
                self.rendezvous = "file:///met"


class EndsWithTheCoordinator(Broken):
    caught_by = "test_independent_engines_serve_on_without_the_coordinator"

    class Fleet(ScaledFleet):
        def check(self, indexes):
            if not self.pids():
                raise LaunchError("the coordinator ended")


class LeavesTheCoordinator(Broken):
    caught_by = "test_a_companion_is_closed_more_than_once"

    class Fleet(ScaledFleet):
        has_been_asked = False

        def close(self):
            if self.has_been_asked:
                super().close()
            self.has_been_asked = True


class StepsForAnyRequest(Broken):
    caught_by = "test_independent_engines_step_alone"

    class Companion(WaveCompanion):
        def on_request(self, tag=0):
            super().on_request(tag)
            self.must_step = True


class TakesNoDummySteps(Broken):
    caught_by = "test_engines_in_lockstep_pause_at_the_same_step"

    class Companion(WaveCompanion):
        def on_step(self, engine):
            engine.num_passes += not engine.has_work()
            super().on_step(engine)


class WakesNobody(Broken):
    caught_by = "test_a_front_end_wakes_engines_before_the_request_arrives"

    class Router(BalancedRouter):
        def sent(self, index):
            """Leave it to the engine."""


class WalksInItsSleep(Broken):
    caught_by = "test_an_engine_that_sleeps_is_not_woken"

    class Companion(WaveCompanion):
        def receive(self, starts):
            super().receive(True)


class WaitsOn(Broken):
    caught_by = "test_an_engine_that_ends_waits_no_longer"

    def companion(self, context, spec, metadata, config, keeps_waiting):
        ended_s: list[float] = []

        def waits_on() -> bool:
            if keeps_waiting():
                return True
            ended_s.append(time.monotonic())
            return ended_s[-1] < ended_s[0] + 2 * PATIENCE_S

        return super().companion(context, spec, metadata, config, waits_on)


BROKEN = Broken.__subclasses__()


@pytest.mark.nightly_after(3)
@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
@pytest.mark.broken("coordination")
def test_a_broken_one_is_caught_by_the_test_that_names_the_rule(broken):
    """Each rule has one that breaks it."""
    suite = type(
        "Suite", (CoordinationContract,), {"coordination": broken, "patience_s": PATIENCE_S}
    )
    assert broken.caught_by in failing_tests(suite, [broken.caught_by])


def test_every_rule_has_one_that_breaks_it():
    rules = {name for name in dir(CoordinationContract) if name.startswith("test_")}
    unbroken = rules - {broken.caught_by for broken in BROKEN}
    assert unbroken == {"test_it_is_a_coordination_that_the_kernel_accepts"}
