"""Operations on all engines of a front end: none sleeps, changes or goes on alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry_operations.operations import Operations


class Engines:
    """Answers as two engines do; `steps`: how often they say that a wave still runs."""

    def __init__(self, *, held=False, steps=0, fails=None):
        self.calls: list[str] = []
        self.held = held
        self.steps = steps
        self.fails = fails

    async def call(self, method: str, *_: Any) -> list[Any]:
        self.calls.append(method)
        if method == self.fails:
            raise RuntimeError("no")
        if method == "is_stepping":
            self.steps -= 1
            return [self.steps >= 0, False]
        return [self.held if method == "is_held" else None] * 2

    change = call

    async def call_engine(self, index: int, method: str, *args: Any) -> None:
        self.calls.append(f"{index}: {method} {args}")


def run(engines, act):
    recorded = []
    operations = Operations(engines, lambda *values: recorded.append(values), set())
    asyncio.run(act(operations))
    return recorded


def test_engines_sleep_when_none_of_them_steps():
    engines = Engines(steps=2)
    recorded = run(engines, lambda operations: operations.sleep(2))
    stepping = ["is_stepping"] * 3
    assert engines.calls == ["is_held", "hold", *stepping, "sleep", "release"]
    assert recorded == [("record_sleep_state", True, 2)]


def test_all_are_awake_before_one_goes_on():
    engines = Engines()
    recorded = run(engines, lambda operations: operations.wake_up(["weights"]))
    assert engines.calls[-3:] == ["wake_up", "is_sleeping", "release"]
    assert recorded == [("record_sleep_state", False, 0)]


def test_all_say_that_an_update_fits_before_one_stops():
    engines = Engines(fails="check_update")
    with pytest.raises(RuntimeError, match="no"):
        run(engines, lambda operations: operations.update_weights("x"))
    assert engines.calls == ["check_update"]


def test_they_go_on_after_a_failure():
    engines = Engines(fails="update_weights")
    with pytest.raises(RuntimeError, match="no"):
        run(engines, lambda operations: operations.update_weights("x"))
    assert engines.calls[-2:] == ["update_weights", "release"]


def test_those_that_were_held_stay_so():
    engines = Engines(held=True)
    run(engines, lambda operations: operations.update_weights("x"))
    assert "release" not in engines.calls


def joined(engines, *acts):
    async def main(operations):
        for act in acts:
            await act(operations)
        engines.calls.clear()
        await operations.on_join([3])

    run(engines, main)
    return engines.calls


def test_an_engine_that_joins_sleeps_as_the_others():
    assert joined(Engines(), lambda calls: calls.sleep(2)) == ["3: sleep (2,)"]
    assert joined(Engines(), lambda calls: calls.sleep(2), lambda calls: calls.wake_up()) == []


def test_an_engine_that_joins_is_held_as_the_others():
    assert joined(Engines(), lambda calls: calls.hold()) == ["3: hold ()"]
    assert joined(Engines(), lambda calls: calls.hold(), lambda calls: calls.release()) == []


def test_an_engine_that_joins_gets_the_weights_of_the_others():
    """Since the checkpoint, or the last update of all of them."""
    updates = [lambda calls: calls.update_weights("/a"), lambda calls: calls.update_weights("/b")]
    assert joined(Engines(), *updates) == ["3: update_weights ('/b', None, '')"]
    part = lambda calls: calls.update_weights("/c", ["w"], "2")  # noqa: E731
    assert joined(Engines(), *updates, part) == [
        "3: update_weights ('/b', None, '')",
        "3: update_weights ('/c', ['w'], '2')",
    ]
    away = [lambda calls: calls.sleep(2), lambda calls: calls.wake_up()]
    assert joined(Engines(), *updates, *away) == []
