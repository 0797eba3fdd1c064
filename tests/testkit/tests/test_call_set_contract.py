"""The suite of call sets, over one that is right and over broken ones."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from tenonry.interfaces.call_set import CallSet, FrontEndHalf
from tenonry_testkit.call_set import CallSetContract
from tenonry_testkit.outcomes import failing_tests


class EngineMarks:
    def __init__(self) -> None:
        self._marks: set[str] = set()

    def mark(self, name: str) -> list[str]:
        self._marks.add(name)
        return sorted(self._marks)


class Marks(FrontEndHalf):
    def __init__(self, front_end: Any) -> None:
        self._front_end = front_end
        self._marks: list[str] = []

    async def mark(self, name: str) -> list[Any]:
        self._marks.append(name)
        return await self._front_end.calls.change("mark", name)

    async def on_join(self, engines):
        for index in engines:
            for name in self._marks:
                await self._front_end.calls.call_engine(index, "mark", name)


class MarkCalls(CallSet):
    """Marks engines."""

    name = "marks"
    half: ClassVar[Any] = Marks
    engine: ClassVar[Any] = EngineMarks

    def engine_half(self, engine):
        return self.engine()

    def front_end_half(self, front_end):
        return self.half(front_end)


class TestMarks(CallSetContract):
    call_set = MarkCalls
    calls: ClassVar = [("mark", ["a"]), ("mark", ["b"])]


class TestByName(TestMarks):
    call_set = f"{__name__}:MarkCalls"


class DividedName(MarkCalls):
    caught_by = "test_it_is_a_call_set_that_the_kernel_accepts"
    name = "marks.more"


class Bare(EngineMarks):
    def mark(self, name):
        return super().mark(name)


class Unannotated(MarkCalls):
    caught_by = "test_engine_methods_are_annotated"
    engine = Bare


class Blocking(Marks):
    def mark(self, name):
        return super().mark(name)


class NoCoroutine(MarkCalls):
    caught_by = "test_calls_are_coroutines_that_engines_answer"
    half = Blocking


class SetMarks(EngineMarks):
    def mark(self, name: str) -> Any:
        super().mark(name)
        return object()


class CannotBeSent(MarkCalls):
    caught_by = "test_calls_are_coroutines_that_engines_answer"
    engine = SetMarks


class Loud(Marks):
    async def on_join(self, engines):
        for name in self._marks:
            await self._front_end.calls.change("mark", name)


class AsksAll(MarkCalls):
    caught_by = "test_engines_that_join_are_brought_up_to_date"
    half = Loud


class Different(Marks):
    def __init__(self, front_end):
        super().__init__(front_end)
        front_end.divergence.add("engines are marked")


class NeverRestarted(MarkCalls):
    caught_by = "test_front_ends_differ_in_nothing_at_first"
    half = Different


class Asking(Marks):
    def __init__(self, front_end):
        super().__init__(front_end)
        asyncio.run(front_end.calls.call("mark", "first"))


class AsksAtOnce(MarkCalls):
    caught_by = "test_nothing_is_asked_until_somebody_calls"
    half = Asking


class NoBlockingHalf(MarkCalls):
    caught_by = "test_it_has_a_blocking_half"

    def blocking_half(self, llm, engine):
        return llm.calls["marks"]


BROKEN = [
    DividedName, Unannotated, NoCoroutine, CannotBeSent, AsksAll, NeverRestarted, AsksAtOnce, NoBlockingHalf,
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.slow
@pytest.mark.broken("call_set")
def test_broken_ones_are_caught(broken):
    class Suite(TestMarks):
        call_set = broken

    assert broken.caught_by in failing_tests(Suite)
