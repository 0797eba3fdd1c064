"""Several prompts of one request: started one by one, and merged into one stream or the last outputs. Front end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from tenonry.outputs import RequestOutput

Result = TypeVar("Result")


async def start_sequentially(
    work: Iterable[Coroutine[Any, Any, Result]], tasks: list[asyncio.Task[Result]]
) -> None:
    """Append a task for each, until one fails, and yield to the event loop after each.

    A prompt is tokenised when its task begins; a thousand of them in one iteration would delay all other requests for
    seconds.
    """
    for coroutine in work:
        task = asyncio.create_task(coroutine)
        tasks.append(task)
        await asyncio.sleep(0)
        if task.done() and not task.cancelled() and task.exception() is not None:
            return


async def cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel running tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def last_outputs(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> list[RequestOutput]:
    """The last output of each stream; the first error ends them all."""
    tasks: list[asyncio.Task[RequestOutput]] = []
    try:
        await start_sequentially((last_output(stream) for stream in streams), tasks)
        return await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def last_output(outputs: AsyncGenerator[RequestOutput, None]) -> RequestOutput:
    """The final state of a request that does not stream."""
    last: RequestOutput | None = None
    async with aclosing(outputs):
        async for output in outputs:
            last = output
    if last is None:
        raise RuntimeError("the engine's stream ended without an output")
    return last


async def merge(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[RequestOutput, None]:
    """Yield all outputs of `streams`. The first error ends all of them; closing it closes them.

    A slow reader delays the streams: at most one output of each is buffered here.
    """
    ready: asyncio.Queue[RequestOutput | Exception | None] = asyncio.Queue(maxsize=len(streams))

    async def pump(stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with aclosing(stream):
                async for output in stream:
                    await ready.put(output)
        except Exception as error:
            await ready.put(error)
            raise
        await ready.put(None)

    tasks: list[asyncio.Task[None]] = []
    try:
        await start_sequentially((pump(stream) for stream in streams), tasks)
        running = len(tasks)
        while running:
            item = await ready.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        await cancel(tasks)
