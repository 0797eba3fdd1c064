"""Adapters of all engines (AF-15), and of those that are added later."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.errors import RequestError
from tenonry.step import Adapter
from tenonry_operations.adapters import Adapters, BlockingAdapters, EngineAdapters
from tenonry_operations.lora_request import LoRARequest


class Engines:
    """Two engines; what they were asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.answers: list[Any] = [True, True]

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.asked.append((method, *args))
        await asyncio.sleep(0)
        return self.answers

    change = call

    async def call_engine(self, index: int, method: str, *args: Any) -> bool:
        self.asked.append((index, method, *args))
        await asyncio.sleep(0)
        return True


def test_engines_that_come_later_load_what_is_loaded():
    engines = Engines()
    adapters = Adapters(engines)

    async def main() -> None:
        assert await adapters.add_lora("a", "/a")
        assert await adapters.add_lora("b", "/b")
        assert await adapters.remove_lora("a")
        engines.asked.clear()
        await adapters.on_join([1])

    asyncio.run(main())
    assert engines.asked == [(1, "add_lora", "b", "/b")]


def test_one_that_is_being_loaded_when_engines_join_is_not_missed():
    engines = Engines()
    adapters = Adapters(engines)

    async def main() -> None:
        await adapters.add_lora("a", "/a")
        joined = [asyncio.ensure_future(adapters.add_lora("b", "/b"))]
        await asyncio.sleep(0)  # it was sent to the engines of now
        engines.asked.clear()
        joined.append(asyncio.ensure_future(adapters.on_join([1])))
        joined.append(asyncio.ensure_future(adapters.add_lora("c", "/c")))
        await asyncio.gather(*joined)

    asyncio.run(main())
    joining = [(1, "add_lora", name, f"/{name}") for name in "ab"]
    assert engines.asked == [*joining, ("add_lora", "c", "/c")]


def test_one_engine_that_says_no_is_enough():
    engines = Engines()
    engines.answers = [True, False]
    assert asyncio.run(Adapters(engines).pin_lora("a")) is False


@pytest.mark.parametrize("fields", [("a", "1", "/a"), ("a", 1, None), (5, 1, "/a")])
def test_request_with_a_value_of_another_type(fields):
    with pytest.raises(RequestError, match="has the wrong type: Expected"):
        LoRARequest(*fields)


@pytest.mark.parametrize("request_", [[5], "a", Adapter("a", "d"), [None, "a"]])
def test_other_requests_are_refused(request_):
    adapters = BlockingAdapters(EngineAdapters(Worker()))
    with pytest.raises(RequestError, match="must be a LoRARequest"):
        adapters.requested(request_)


def test_adapters_of_the_start_have_their_folder():
    modules = ("a=/a", '{"name": "b", "path": "/b"}')
    worker = Worker()
    worker.names = ["a@1", "b@2"]
    adapters = BlockingAdapters(EngineAdapters(worker), modules)
    assert adapters.requested(LoRARequest("a", 1, "/x/../a")) == Adapter("a", "1")
    with pytest.raises(RequestError, match="'b' was loaded from /b, not /a"):
        adapters.requested(LoRARequest("b", 1, "/a"))


class Worker:
    """One rank with adapters whose names hold an @."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.executor = SimpleNamespace(capabilities={"lora"})

    def call_workers(self, method: str, args: Any = ()) -> list[Any]:
        if method == "add_lora":
            self.names.append(f"{args[0]}@d{len(self.names)}")
        if method == "remove_lora":
            self.names = [name for name in self.names if not name.startswith(args[0])]
        return [self.names]


def test_of_one_engine():
    adapters = BlockingAdapters(EngineAdapters(Worker()))
    assert adapters.add_lora("x@home", "/x") == Adapter("x@home", "d0")
    assert adapters.add_lora("y", "/y") == Adapter("y", "d1")
    adapters.remove_lora("x@home")
    assert adapters.list_loras() == [Adapter("y", "d1")]
