"""Engines that restart together, and the effect of a failed start on the others."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from tenonry.errors import LaunchError
from tenonry.interfaces.launcher import Death
from tenonry.stats import RecoveryStats
from tenonry_recovery import restarts
from tenonry_recovery.restarts import Restarts


class FakeServed:
    """Those who wait for the engines."""

    is_over = False
    serves = False

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.given_up: dict[int, str] = {}

    def has(self, index: int) -> bool:
        return False

    async def divergence(self) -> Collection[str]:
        return ()

    async def restart(self, indexes: Sequence[int]) -> None:
        raise NotImplementedError

    def note(self, index: int, numbers: RecoveryStats) -> None:
        """No stat logger is there."""

    async def admit(self, indexes: Sequence[int]) -> None:
        self.admitted += indexes

    def give_up(self, index: int, reason: str) -> None:
        self.given_up[index] = reason


async def until_all_are_known(served: FakeServed, count: int) -> None:
    while len(served.admitted) + len(served.given_up) < count:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


def test_an_engine_that_cannot_be_started_takes_no_other_with_it(monkeypatch):
    monkeypatch.setattr(restarts, "RETRY_S", 0.0)
    served = FakeServed()
    tried: list[list[int]] = []

    async def restart(indexes: Sequence[int]) -> None:
        tried.append(list(indexes))
        if 1 in indexes:
            raise LaunchError("its node is gone")

    async def main() -> None:
        served.restart = restart
        found = Restarts(served, asyncio.Lock())
        for index in range(3):
            found.on_death(index, Death(f"engine {index} died"))
        await until_all_are_known(served, 3)

    asyncio.run(main())
    assert sorted(served.admitted) == [0, 2]
    assert "its node is gone" in served.given_up[1]
    assert tried[0] == [0, 1, 2]
    assert all(len(indexes) == 1 for indexes in tried[1:])


def test_engines_that_step_together_are_started_together_and_given_up_together(monkeypatch):
    monkeypatch.setattr(restarts, "RETRY_S", 0.0)
    served = FakeServed()
    tried: list[list[int]] = []

    async def restart(indexes: Sequence[int]) -> None:
        tried.append(list(indexes))
        if len(tried) > 1:
            raise LaunchError("no memory")

    async def main() -> None:
        served.restart = restart
        found = Restarts(served, asyncio.Lock(), num_together=2)
        for turn in (1, 2):
            for index in (1, 0):
                found.on_death(index, Death(f"engine {index} died"))
                await asyncio.sleep(0.02)
            await until_all_are_known(served, 2 * turn)

    asyncio.run(main())
    assert sorted(served.admitted) == [0, 1]
    assert set(map(tuple, tried)) == {(0, 1)}
    assert all("no memory" in reason for reason in served.given_up.values())
    assert sorted(served.given_up) == [0, 1]


def test_an_engine_that_was_given_up_may_come_back(monkeypatch):
    """Its node restarted: earlier attempts no longer count."""
    monkeypatch.setattr(restarts, "RETRY_S", 0.0)
    served = FakeServed()
    is_there = False

    async def restart(indexes: Sequence[int]) -> None:
        if not is_there:
            raise LaunchError("its node is gone")

    async def main() -> None:
        nonlocal is_there
        served.restart = restart
        found = Restarts(served, asyncio.Lock())
        found.on_death(1, Death("its node is silent"))
        await until_all_are_known(served, 1)
        is_there = True
        found.on_death(1, Death("its node was started again"))
        await until_all_are_known(served, 2)

    asyncio.run(main())
    assert served.admitted == [1]


def test_streams_that_go_on_in_other_engines_have_processors_first(monkeypatch):
    """Not with a standby, which needs no start."""
    monkeypatch.setattr(restarts, "HEAD_START_S", 0.5)
    served = FakeServed()
    waited: dict[tuple[bool, int], float] = {}

    async def main() -> None:
        for serves, standbys in [(False, 0), (True, 0), (True, 1)]:
            called = asyncio.Event()

            async def restart(indexes: Sequence[int], called: asyncio.Event = called) -> None:
                called.set()

            served.restart = restart
            found = Restarts(served, asyncio.Lock(), num_at_once=lambda standbys=standbys: standbys)
            served.serves = serves
            begin = asyncio.get_running_loop().time()
            found.on_death(1, Death("it was killed"))
            await called.wait()
            waited[serves, standbys] = asyncio.get_running_loop().time() - begin

    asyncio.run(main())
    assert waited[True, 0] >= 0.5
    assert max(waited, key=waited.__getitem__) == (True, 0)
