"""Call set `scaling`: another number of engines while requests run. Front end; the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from tenonry.client.engines import Engines, OwnedEngines
from tenonry.errors import ConfigError, LaunchError, Unsupported
from tenonry.interfaces.call_set import CallSet, FrontEnd, FrontEndHalf
from tenonry_scale_out.joining import grow

logger = logging.getLogger("tenonry.scale_out")
MAX_ENGINES = 1024
POLL_S = 0.005
Replace = Callable[[dict[str, Any], int], Awaitable[None]]


class Scaling(CallSet):
    """Behind `AsyncLLM.scale`; nothing of it runs in engines."""

    name = "scaling"

    def front_end_half(self, front_end: FrontEnd) -> FrontEndHalf:
        return EngineScaling()


class EngineScaling(FrontEndHalf):
    """Changes the number of engines of a front end."""

    async def scale(
        self, engines: Engines, size: int, drain_timeout: float, replace: Replace
    ) -> None:
        """Ask whoever owns the engines; `replace`: as of `scale_owned`. Raises Unsupported if their number is fixed."""
        if isinstance(engines, OwnedEngines):
            await scale_owned(engines, size, drain_timeout, replace)
        elif change := getattr(engines, "scale", None):
            await change(size, drain_timeout)
        else:
            raise Unsupported(
                f"{size} engines: they belong to another process, which alone can start more"
            )


async def scale_owned(
    engines: OwnedEngines, size: int, drain_timeout: float, replace: Replace
) -> None:
    """Start engines, or let some finish and stop them, until `size` run. On the event loop that uses the client.

    Engines that step together cannot be joined or left by one: `replace({}, size)` starts others in place of all.
    Raises ConfigError, LaunchError, or TimeoutError if those that leave still have requests after `drain_timeout`.
    """
    links = engines.client.engines
    while any(link.dead for link in links.values()):  # noqa: ASYNC110 - until its requests have failed
        await asyncio.sleep(POLL_S)
    running = sorted(links)
    if not 1 <= size <= MAX_ENGINES:
        raise ConfigError(f"{size} engines: at least 1 and at most {MAX_ENGINES} are possible")
    if size == len(running):
        logger.info("%d engines already run", size)
        return
    fleet = engines.fleet
    leaving = running[size:]
    if engines.model.needs_lockstep:
        async with _leaving(engines, leaving, drain_timeout):
            await replace({}, size)
        return
    before = fleet.size
    fleet.size = size
    try:
        if size > len(running):
            unused = [index for index in range(MAX_ENGINES) if index not in running]
            joining = unused[: size - len(running)]
            fleet.companion.remote.difference_update(joining)
            await grow(engines, joining)
        else:
            await _shrink(engines, leaving, drain_timeout)
    except BaseException:
        fleet.size = before
        raise


async def _shrink(engines: OwnedEngines, leaving: Sequence[int], drain_timeout: float) -> None:
    if remote := sorted(engines.fleet.companion.remote.intersection(leaving)):
        raise ConfigError(f"engines {remote} belong to another node; stop that node instead")
    links = engines.client.engines
    async with _leaving(engines, leaving, drain_timeout):
        if not any(link.index not in leaving and not link.dead for link in links.values()):
            raise LaunchError(f"the remaining engines failed; engines {leaving} stay instead")
    engines.learn()
    for fleet in engines.fleets:
        await asyncio.to_thread(fleet.stop, leaving)


@contextlib.asynccontextmanager
async def _leaving(
    engines: OwnedEngines, leaving: Sequence[int], drain_timeout: float
) -> AsyncIterator[None]:
    """Engines get no new requests, and are forgotten after the block, which begins when those that run have ended."""
    client = engines.client
    links = client.engines
    deadline = time.monotonic() + drain_timeout
    client.leaving.update(leaving)
    try:
        while open_requests := sum(
            len(links[index].requests) for index in leaving if index in links
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{open_requests} requests still run on engines {leaving} after {drain_timeout:g} s; "
                    "nothing changed"
                )
            await asyncio.sleep(POLL_S)
        yield
    except BaseException:
        client.leaving.difference_update(leaving)
        raise
    for index in leaving:  # one that died in the interval is gone already
        client.remove_engine(index, "it was scaled away")
