"""Tests of the scheduler suite for configurations, and for policies of schedulers that have them. Test process."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import pytest
from pydantic import BaseModel

from tenonry.errors import PluginError, PluginFault
from tenonry.outputs import FinishReason
from tenonry_scheduling import BaseScheduler
from tenonry_testkit.fakes import policies
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import CHECKED, NAMES_ITS_POLICY, POLICY_FORMS, expect
from tenonry_testkit.scenarios_endings import play_out
from tenonry_testkit.scenarios_numbers import OUTGROWS
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, play

CRAMPED = HarnessSpec(num_blocks=14)  # OUTGROWS preempts in it
FAKES = policies.__name__
FORMS = ("OrderAlone", "admit_alone", "VictimAlone")
INVALID: dict[str, dict[str, Any]] = {
    "an object without any method of a policy": {"name": f"{FAKES}:NoPolicy"},
    "a name that leads to nothing": {"name": f"{FAKES}:Missing"},
    "an option that the policy lacks": {
        "name": f"{FAKES}:FailingPolicy",
        "options": {"colour": "red"},
    },
    "an option with an invalid value": {
        "name": f"{FAKES}:FailingPolicy",
        "options": {"method": "none"},
    },
    "an option of a policy without any": {"name": f"{FAKES}:OrderAlone", "options": {"colour": 1}},
}


class _Engines(Protocol):
    """Any suite with engines around the scheduler under test."""

    policy: ClassVar[str | dict[str, Any] | None]

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...

    @classmethod
    def _resolved(cls) -> tuple[Any, BaseModel, str]: ...


class PolicySuite:
    """Part of `SchedulerContract`. The tests of policies apply to a suite that names a `policy`."""

    policy: ClassVar[str | dict[str, Any] | None] = None

    def test_a_configuration_is_checked_before_the_start(self: _Engines) -> None:
        """`check` accepts the suite's own configuration; it and the constructor reject an invalid policy."""
        target, options, _ = self._resolved()
        config = self.harness().config
        target.check(config, options)
        if self.policy is not None:
            used = [choice.name for _, choice in config.section(target.Settings).uses({})]
            name = config.section(target.Settings).scheduling_policy.name
            expect(name in used, CHECKED, "the settings use {}, not the policy {}", used, name)
            other = _with(self, {"name": f"{FAKES}:OrderAlone"})
            other.harness()
            resolved = vars(type(other)).get("_points", {})
            expect(resolved, CHECKED, "the constructor finds its policy without context.resolve")
        for name, choice in INVALID.items() if self.policy is not None else ():
            expect(_is_rejected(self, choice), CHECKED, "check accepts {}: {}", name, choice)
            try:
                _with(self, choice).harness()
            except PluginError:
                continue
            expect(False, CHECKED, "the constructor accepts {}: {}", name, choice)

    @pytest.mark.parametrize("form", FORMS)
    def test_one_method_makes_a_policy(self: _Engines, form: str) -> None:
        """A class or an object with any one of a policy's methods is one; the others have their defaults."""
        if self.policy is None:
            return
        harness = _with(self, {"name": f"{FAKES}:{form}"}).harness(CRAMPED)
        if form == "admit_alone":
            _are_held(harness)
        else:
            play(harness, OUTGROWS)
        harness.drain()
        started = [new.handle for output in harness.outputs for new in output.new]
        firsts = list(dict.fromkeys(started))
        first, *_, last = harness.ledger.entries
        expect(len(started) > len(firsts), POLICY_FORMS, "{}: nothing is preempted", form)
        if form == "OrderAlone":
            expect(firsts[0] != first, POLICY_FORMS, "the first request starts first, not the last")
            expect(not harness.scheduler.starvation_free, POLICY_FORMS, "starvation_free is lost")
        else:
            expect(firsts[-1] == last, POLICY_FORMS, "{}: the last request starts earlier", form)
            expect(harness.scheduler.starvation_free, POLICY_FORMS, "starvation_free is not usual")
        most = max(len(output.row) for output in harness.outputs)
        expect(most == 2 or form != "admit_alone", POLICY_FORMS, "{} run, 2 are admitted", most)
        again = next(handle for handle in started if started.count(handle) > 1)
        is_first = again == first
        expect(is_first == (form == "VictimAlone"), POLICY_FORMS, "{}: {} goes first", form, again)

    @pytest.mark.parametrize("method", ["order", "admit", "victim"])
    def test_a_failing_policy_is_named(self: _Engines, method: str) -> None:
        """An exception in a policy names it and its method; an error of the project's own passes unchanged."""
        if self.policy is None:
            return
        for error in policies.ERRORS:
            options = {"method": method, "error": error}
            harness = _with(self, {"name": f"{FAKES}:FailingPolicy", "options": options}).harness(
                CRAMPED
            )
            try:
                play_out(harness, OUTGROWS)
            except PluginFault as fault:
                is_named = method in fault.call and "FailingPolicy" in fault.plugin
                is_due = is_named and error == "KeyError"
                expect(is_due, NAMES_ITS_POLICY, "{} in {} became: {}", error, method, fault)
            except policies.ERRORS[error] as raised:
                is_due = error != "KeyError"
                expect(is_due, NAMES_ITS_POLICY, "{} in {} names no policy", raised, method)
            else:
                is_due = (error, method) == ("RequestError", "order")
                expect(is_due, NAMES_ITS_POLICY, "{} in {} has no effect", error, method)
                _were_rejected(harness)


def _are_held(harness: SchedulerHarness) -> None:
    """Of a scheduler of the library, `held` names the requests that wait for their policy, and no others."""
    scheduler = harness.scheduler
    play(harness, [op for op in OUTGROWS if isinstance(op, Send)])
    reasons = set()
    while harness.ledger.num_live and harness.turn():
        held = dict(scheduler.held) if isinstance(scheduler, BaseScheduler) else {}
        reasons |= {str(reason) for reason in held.values()}
        running = {entry.handle for entry in harness.ledger.live if entry.request.row >= 0}
        both = held.keys() & running
        expect(not both, POLICY_FORMS, "requests {} run, and wait for their policy", both)
    is_named = any("policy" in reason for reason in reasons)
    is_due = isinstance(scheduler, BaseScheduler)
    detail = "requests wait for their policy, and `held` has {}"
    expect(is_named or not is_due, POLICY_FORMS, detail, reasons)


def _with(suite: _Engines, choice: dict[str, Any]) -> Any:
    """The same suite with another policy."""
    return type("Other", (type(suite),), {"policy": choice})()


def _is_rejected(suite: _Engines, choice: dict[str, Any]) -> bool:
    """Return True if the scheduler's `check` rejects the policy."""
    target, options, _ = suite._resolved()
    config = _with(suite, choice)._configured(HarnessSpec()).engine_config()
    try:
        target.check(config, options)
    except PluginError:
        return True
    return False


def _were_rejected(harness: SchedulerHarness) -> None:
    """A RequestError of `order` rejects the request."""
    play(harness, [Send()])
    ends = [entry.finished for entry in harness.ledger.entries.values()]
    rejected = all(end is not None and end.reason is FinishReason.ERROR for end in ends)
    expect(rejected, NAMES_ITS_POLICY, "RequestError in order rejects no request: {}", ends)
