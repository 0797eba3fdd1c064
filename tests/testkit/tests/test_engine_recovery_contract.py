"""The suite of engine recoveries, over the kernel's own, one that resumes, and broken ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenonry.errors import EngineDeadError
from tenonry.interfaces.recovery import EngineRecovery
from tenonry_testkit.engine_recovery import EngineRecoveryContract
from tenonry_testkit.outcomes import failing_tests


class Resumes(EngineRecovery):
    """Sends every request again, at once."""

    @classmethod
    def restarts(cls, config):
        return True

    def again(self, handle: int, request: Any) -> Any:
        completion = self.context.streams.completion(handle)
        if completion is None:
            return None
        return msgspec.structs.replace(request, output_token_ids=completion.delivered_ids.tolist())

    def open(self, requests):
        found = {handle: self.again(handle, each) for handle, each in requests.items()}
        return {handle: each for handle, each in found.items() if each is not None}

    def on_death(self, index, death, requests):
        found = self.open(requests)
        for each in found.values():
            self.context.streams.send([each])
        return found.keys()

    def on_moved(self, index, requests):
        found = self.open(requests)
        self.context.engines.client.send_requests(index, list(found.values()))
        return found.keys()


class TestEndOfStreams(EngineRecoveryContract):
    recovery = "end"


class TestResumes(EngineRecoveryContract):
    recovery = Resumes


class TestByName(EngineRecoveryContract):
    recovery = f"{__name__}:Resumes"


class Undecided(Resumes):
    caught_by = "test_it_is_a_recovery_that_the_kernel_accepts"

    @classmethod
    def restarts(cls, config):
        return None


class Blocks(Resumes):
    caught_by = "test_only_coroutines_wait"

    def on_started(self, indexes):
        """The event loop stands still meanwhile."""


class Forgets(Resumes):
    caught_by = "test_what_it_takes_over_is_resumed_or_ended_once"

    def on_death(self, index, death, requests):
        return requests.keys()


class LeavesAndSends(Resumes):
    caught_by = "test_what_it_takes_over_is_resumed_or_ended_once"

    def on_death(self, index, death, requests):
        super().on_death(index, death, requests)
        return ()


class SendsTwice(Resumes):
    caught_by = "test_what_it_takes_over_is_resumed_or_ended_once"

    def on_death(self, index, death, requests):
        super().on_death(index, death, requests)
        return super().on_death(index, death, requests)


class TakesOthers(Resumes):
    caught_by = "test_what_it_takes_over_is_resumed_or_ended_once"

    def on_death(self, index, death, requests):
        return [*super().on_death(index, death, requests), 4711]


class FailsAndSends(Resumes):
    caught_by = "test_what_it_takes_over_is_resumed_or_ended_once"

    def on_death(self, index, death, requests):
        taken = super().on_death(index, death, requests)
        self.context.streams.fail([0], EngineDeadError("gone"))
        return taken


class Repeats(Resumes):
    caught_by = "test_a_resumed_request_has_its_delivered_tokens_as_output"

    def again(self, handle, request):
        return request if super().again(handle, request) else None


class Revives(Resumes):
    caught_by = "test_a_request_that_ended_meanwhile_stays_ended"

    def again(self, handle, request):
        return super().again(handle, request) or request


class Invents(Resumes):
    caught_by = "test_an_engine_that_ran_nothing_changes_nothing"

    def on_given_up(self, index, reason):
        self.context.streams.fail([0], EngineDeadError(reason))


class MovesAnywhere(Resumes):
    caught_by = "test_moved_streams_go_to_the_engine_that_took_the_place"

    def on_moved(self, index, requests):
        self.context.engines.client.send_requests(index + 1, list(requests.values()))
        return requests.keys()


class Tries(Resumes):
    caught_by = "test_an_engine_that_is_back_gets_requests_once_the_trial_is_over"

    async def on_started(self, indexes):
        raise RuntimeError("no trial")


class Keeps(Resumes):
    caught_by = "test_held_requests_are_sent_once_when_an_engine_is_admitted_or_given_up"

    def hold(self, requests):
        """Nothing is sent."""


class Partial(Resumes):
    caught_by = "test_other_configurations_are_whole_ones"

    @classmethod
    def alternatives(cls, config, manager):
        return [{"max_num_seqs": 1}]


class Fixed(Resumes):
    caught_by = "test_it_takes_a_changed_configuration"

    def on_change(self, config):
        raise ValueError("another configuration")


class EndsOnce(Resumes):
    caught_by = "test_shutdown_is_idempotent"
    is_over = False

    def shutdown(self):
        assert not self.is_over
        self.is_over = True


BROKEN = [
    Undecided, Blocks, Forgets, LeavesAndSends, SendsTwice, TakesOthers, FailsAndSends, Repeats, Revives, Invents,
    MovesAnywhere, Tries, Keeps, Partial, Fixed, EndsOnce,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("engine_recovery")
def test_broken_ones_are_caught(broken):
    class Suite(EngineRecoveryContract):
        recovery = broken

    assert broken.caught_by in failing_tests(Suite)
