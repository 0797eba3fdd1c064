"""Many prompts of one request: they start one by one, so that other requests need not wait for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from tenonry.outputs import RequestOutput
from tenonry_openai_server.merge import last_outputs, merge

COUNT = 20


class Prompts:
    """Streams that record, as they begin, the number of turns that other tasks had before."""

    def __init__(self, failing: int = -1) -> None:
        self.turns, self.begun, self.open, self._failing = 0, [], 0, failing

    async def others(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)

    async def stream(self, number: int) -> AsyncGenerator[RequestOutput, None]:
        self.begun.append(self.turns)
        if number == self._failing:
            raise ValueError("this prompt is too long")
        self.open += 1
        try:
            await asyncio.sleep(0.01)  # the engine takes its time
            yield RequestOutput(f"{number}", None, [], [], finished=True)
        finally:
            self.open -= 1

    def streams(self) -> list[AsyncGenerator[RequestOutput, None]]:
        return [self.stream(number) for number in range(COUNT)]


async def merged(streams: list[AsyncGenerator[RequestOutput, None]]) -> list[RequestOutput]:
    return [output async for output in merge(streams)]


@pytest.mark.parametrize("way", [last_outputs, merged])
class TestTurns:
    def test_others_have_a_turn_between_two_prompts(self, way):
        async def main() -> None:
            prompts = Prompts()
            others = asyncio.ensure_future(prompts.others())
            outputs = await way(prompts.streams())
            others.cancel()
            assert sorted(int(output.request_id) for output in outputs) == list(range(COUNT))
            assert len(set(prompts.begun)) == COUNT
            assert prompts.open == 0

        asyncio.run(main())

    @pytest.mark.parametrize("failing", [0, COUNT // 2, COUNT - 1])
    def test_one_that_fails_ends_them_all(self, way, failing):
        async def main() -> None:
            prompts = Prompts(failing)
            with pytest.raises(ValueError, match="too long"):
                await way(prompts.streams())
            assert prompts.open == 0
            assert len(prompts.begun) == failing + 1  # the rest need not be read any more

        asyncio.run(main())

    def test_a_caller_that_leaves_while_they_begin_ends_them(self, way):
        async def main() -> None:
            prompts = Prompts()
            task = asyncio.ensure_future(way(prompts.streams()))
            for _ in range(COUNT // 2):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert prompts.open == 0
            assert len(prompts.begun) < COUNT

        asyncio.run(main())
