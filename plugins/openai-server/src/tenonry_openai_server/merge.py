"""Several prompts of one request as one stream of outputs, in the order in which they come. Front end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tenonry.outputs import RequestOutput


async def merge(streams: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[RequestOutput, None]:
    """All outputs of `streams`. The first error ends all of them; closing it closes them.

    A slow reader holds the streams back: at most one output of each waits here.
    """
    ready: asyncio.Queue[RequestOutput | BaseException | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(stream: AsyncGenerator[RequestOutput, None]) -> None:
        end: Exception | None = None
        try:
            async with aclosing(stream):
                async for output in stream:
                    await ready.put(output)
        except Exception as error:  # noqa: BLE001  raised again by the reader
            end = error
        await ready.put(end)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            item = await ready.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
