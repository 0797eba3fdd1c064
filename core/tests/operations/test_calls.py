"""Operations on all engines of a front end: none sleeps, changes or goes on alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry.operations.calls import Operations


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

    async def all(self, method: str, *args: Any) -> bool:
        return all(await self.call(method, *args))


def run(engines, act):
    recorded = []
    operations = Operations(engines, lambda *values: recorded.append(values))
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
