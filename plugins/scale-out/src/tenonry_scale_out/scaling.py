"""Another number of engines that several front ends share. The supervisor's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from tenonry.client.engines import OwnedEngines
from tenonry_scale_out.engine_scaling import Replace, scale_owned
from tenonry_scale_out.front_ends import ANSWER_TIMEOUT_S, FrontEnds

POLL_S = 0.05


async def scale(
    engines: OwnedEngines, front_ends: FrontEnds, size: int, drain_timeout: float, replace: Replace
) -> None:
    """As `scale_owned`. Engines that leave first finish the requests of all front ends."""
    leaving: Sequence[int] = ()
    if size > 0:
        leaving = sorted(engines.client.engines)[size:]
    try:
        if leaving:
            await _drain(front_ends, leaving, drain_timeout)
        await scale_owned(engines, size, drain_timeout, replace)
    except BaseException:
        if leaving:
            await front_ends.ask_all("stay", ANSWER_TIMEOUT_S, indexes=leaving)
        raise
    if leaving:
        await front_ends.ask_all("remove", ANSWER_TIMEOUT_S, indexes=leaving)


async def _drain(front_ends: FrontEnds, leaving: Sequence[int], drain_timeout: float) -> None:
    """Send these engines no new requests, and wait for those that run. Raises TimeoutError."""
    deadline = time.monotonic() + drain_timeout
    while left := await front_ends.total("leave", indexes=leaving):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{left} requests still run on engines {list(leaving)} after {drain_timeout:g} s; nothing changed"
            )
        await asyncio.sleep(POLL_S)
