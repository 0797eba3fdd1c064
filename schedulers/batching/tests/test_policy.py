"""Accepted forms of `--scheduling-policy`, and the errors of invalid ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pydantic import Field

from tenonry.config import EngineConfig
from tenonry.errors import PluginError, PluginFault, RequestError
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import PluginOptions
from tenonry.plugin.manager import PluginManager
from tenonry_scheduler_batching import SchedulingPolicy
from tenonry_scheduler_batching.policies import FcfsPolicy, PriorityPolicy
from tenonry_scheduler_batching.policy import Policy, bind_policy


def bind(name: str, target: object, options: dict) -> Policy:
    return bind_policy(
        target, PluginRecord("scheduling_policy", name, f"mine:{name}", options=options)
    )


def ask(arrival: int, priority: int = 0) -> SimpleNamespace:
    return SimpleNamespace(arrival=arrival, arrival_time=0.5, priority=priority)


class Weighted(SchedulingPolicy):
    class Options(PluginOptions):
        weight: float = Field(1.0, ge=0)

    def order(self, request):
        return request.arrival - self.options.weight * request.priority


class OrderOnly:
    starvation_free = False

    def order(self, request):
        return -request.arrival


def test_fcfs():
    policy = bind("fcfs", FcfsPolicy, {})
    assert policy.order(ask(3)) < policy.order(ask(4))
    assert policy.victim([1, 2, 3]) == 3
    assert policy.admit is None
    assert policy.starvation_free


def test_priority():
    policy = bind("priority", PriorityPolicy, {})
    asked = [ask(1, 5), ask(2, 0), ask(3, 5), ask(4, -1)]
    assert sorted(asked, key=policy.order) == [asked[3], asked[1], asked[0], asked[2]]
    assert policy.victim(asked) is asked[2]
    assert not policy.starvation_free


def test_a_class_without_the_base_will_do():
    policy = bind("mine", OrderOnly, {})
    assert policy.order(ask(3)) == -3
    assert policy.victim(["a", "b"]) == "b"
    assert not policy.starvation_free


def test_so_will_an_object_or_a_module():
    policy = bind("mine", SimpleNamespace(admit=lambda request, state: False), {})
    assert policy.admit(ask(1), None) is False
    assert policy.order(ask(7)) == 7
    assert policy.starvation_free


def test_options_are_validated_and_given():
    policy = bind("weighted", Weighted, {"weight": "2.5"})
    assert policy.order(ask(10, 2)) == 5.0
    assert bind("weighted", Weighted, {}).order(ask(10, 2)) == 8.0


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (Weighted, {"weight": -1}, "'mine' .*weight=-1: .*greater than or equal to 0"),
        (Weighted, {"wait": 1}, "'mine' .*unknown setting 'wait'; .*known options: weight"),
        (OrderOnly, {"weight": 1}, "'mine' .*unknown setting 'weight'; known options: none"),
        (SimpleNamespace(order=min), {"weight": 1}, "'mine' .*known options: none"),
        (SimpleNamespace(), {}, "'mine' .* has none of the methods order, admit, victim"),
        (object, {}, "'mine' .* has none of the methods"),
    ],
)
def test_a_wrong_policy_is_refused_by_name(target, options, message):
    with pytest.raises(PluginError, match=message):
        bind("mine", target, options)


class Clumsy:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def order(self, request):
        raise self.error

    def admit(self, request, state):
        raise self.error

    def victim(self, running):
        raise self.error


@pytest.mark.parametrize("question", ["order", "admit", "victim"])
def test_what_it_raises_names_it_and_not_the_scheduler(question):
    policy = bind("mine.py:Mine", Clumsy(KeyError("tenant")), {})
    arguments = {"order": [None], "admit": [None, None], "victim": [[]]}[question]
    with pytest.raises(
        PluginFault,
        match=rf"plugin mine\.py:Mine \(no distribution\) failed in {question}: KeyError",
    ):
        getattr(policy, question)(*arguments)


def test_what_its_constructor_raises_names_it():
    class Broken(SchedulingPolicy):
        def __init__(self, options=None):
            raise ValueError("no such colour")

    with pytest.raises(
        PluginFault, match=r"plugin mine .* failed in its constructor: ValueError: no such colour"
    ):
        bind("mine", Broken, {})


def test_it_may_refuse_a_request():
    with pytest.raises(RequestError, match="not today"):
        bind("mine", Clumsy(RequestError("not today")), {}).order(None)


class Misspelt(SchedulingPolicy):
    def oder(self, request):
        return 0


class WrongSignature(SchedulingPolicy):
    def admit(self, request):
        return True


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            Misspelt,
            r"has a member 'oder', in the class at .*test_policy\.py:\d+, that is never called; did you mean 'order'",
        ),
        (
            WrongSignature,
            r"admit\(self, request\) at .* cannot be called as SchedulingPolicy declares it",
        ),
    ],
)
def test_a_policy_that_would_not_be_asked_is_refused(target, message):
    with pytest.raises(PluginError, match=message):
        bind("mine", target, {})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("fcsf", "no scheduling policy is called 'fcsf'; .*did you mean 'fcfs'"),
        ({"name": "priority", "options": {"x": 1}}, "unknown setting 'x'; known options: none"),
        ("tenonry_scheduler_batching.policy:AdmissionState", "has none of the methods"),
        ("no_such_module:Mine", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_the_front_end_refuses_it_before_anything_starts(policy, message):
    config = EngineConfig(model="m", scheduler="batching", scheduling_policy=policy)
    with pytest.raises(PluginError, match=message):
        PluginManager(discover=False).resolve("scheduler", config.scheduler, config)
