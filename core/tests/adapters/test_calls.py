"""Adapters of all engines (AF-15), and of those that are added later."""

from __future__ import annotations

import asyncio
from typing import Any

from tenonry.adapters.calls import AdapterCalls, EngineAdapters
from tenonry.adapters.offered import OffersAdapters
from tenonry.step import Adapter


class Engines:
    """Two engines; what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Any] = [True, True]

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.asked.append((method, *args))
        await asyncio.sleep(0)
        return self.answers

    async def all(self, method: str, *args: Any) -> bool:
        return all(await self.call(method, *args))


def test_engines_that_come_later_load_what_is_loaded():
    engines = Engines()
    adapters = AdapterCalls(engines)

    async def main() -> None:
        assert await adapters.add("a", "/a")
        assert await adapters.add("b", "/b")
        assert await adapters.remove("a")
        engines.asked.clear()
        await adapters.renew()

    asyncio.run(main())
    assert engines.asked == [("add_lora", "b", "/b")]


def test_one_that_is_being_loaded_when_engines_join_is_not_missed():
    engines = Engines()
    adapters = AdapterCalls(engines)

    async def main() -> None:
        await adapters.add("a", "/a")
        joined = [asyncio.ensure_future(adapters.add("b", "/b"))]
        await asyncio.sleep(0)  # it was sent to the engines of now
        engines.asked.clear()
        joined.append(asyncio.ensure_future(adapters.renew()))
        joined.append(asyncio.ensure_future(adapters.add("c", "/c")))
        await asyncio.gather(*joined)

    asyncio.run(main())
    assert engines.asked == [("add_lora", name, f"/{name}") for name in "abc"]


class Front(OffersAdapters):
    def __init__(self, adapters: AdapterCalls) -> None:
        self.adapters = adapters


def test_one_engine_that_says_no_is_enough():
    engines = Engines()
    engines.answers = [True, False]
    assert asyncio.run(Front(AdapterCalls(engines)).pin_lora("a")) is False


class Worker:
    """One rank with adapters whose names hold an @."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def call_workers(self, method: str, args: Any = ()) -> list[Any]:
        if method == "add_lora":
            self.names.append(f"{args[0]}@d{len(self.names)}")
        if method == "remove_lora":
            self.names = [name for name in self.names if not name.startswith(args[0])]
        return [self.names]


def test_of_one_engine():
    adapters = EngineAdapters(Worker())
    assert adapters.add("x@home", "/x") == Adapter("x@home", "d0")
    assert adapters.add("y", "/y") == Adapter("y", "d1")
    adapters.remove("x@home")
    assert adapters.all() == [Adapter("y", "d1")]
