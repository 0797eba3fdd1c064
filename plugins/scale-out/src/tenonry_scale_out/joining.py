"""Engines that start while others serve: more of them, or ones that take the place of others. Owner's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from tenonry.client.engines import POLL_S, OwnedEngines
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.transport.folder import RunDirectory


async def grow(engines: OwnedEngines, indexes: Sequence[int]) -> None:
    """Start engines under these numbers; return when they can be used. Raises LaunchError."""
    async with joining(engines, engines.fleet, indexes):
        switch(engines, engines.fleet, indexes)
    engines.learn()


@contextlib.asynccontextmanager
async def joining(
    engines: OwnedEngines, fleet: EngineFleet, indexes: Sequence[int]
) -> AsyncIterator[None]:
    """Start engines, which run no requests in the block but are called as all are: for `switch`. If it raises, they
    are stopped. Raises LaunchError, and what an `on_join` raises.
    """
    try:
        with contextlib.closing(fleet.run_directory()) as directory:
            engines.expect(await _start(engines, fleet, indexes, directory))
            while engines.is_connecting(fleet, indexes):  # noqa: ASYNC110 - sockets raise no event for it
                await asyncio.sleep(POLL_S)
        await engines.events.on_join(fleet, indexes)
        yield
    except BaseException as error:
        for index in indexes:
            engines.client.drop_newcomer(index, str(error))
        engines.events.on_refused(indexes)
        await asyncio.to_thread(fleet.stop, indexes)
        raise


def switch(engines: OwnedEngines, fleet: EngineFleet, indexes: Sequence[int]) -> None:
    """Newcomers of a fleet get these indexes, and the streams of engines that had them. Raises LaunchError."""
    engines.client.check_alive()
    with engines.lock:
        fleet.check_running(indexes)
        engines.events.on_switch(indexes, fleet.coordinator)


async def _start(
    engines: OwnedEngines, fleet: EngineFleet, indexes: Sequence[int], directory: RunDirectory
) -> list[EngineFacts]:
    """Start engines in a thread. It cannot be cancelled: a caller that is stops them."""
    start = asyncio.ensure_future(asyncio.to_thread(fleet.start, indexes, engines.bind(directory)))
    try:
        return await asyncio.shield(start)
    except asyncio.CancelledError:
        fleet.is_cancelled = True
        raise
    finally:
        await asyncio.wait([start])
