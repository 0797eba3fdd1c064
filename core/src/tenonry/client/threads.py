"""Threads for request preparation that takes long. Front end."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tenonry.sampling_params import SamplingParams

Result = TypeVar("Result")
LONG_TEXT_CHARS = 2048  # texts above this are tokenised off the event loop


async def prepared(work: Callable[[], Result], params: SamplingParams, num_chars: int) -> Result:
    """The result of `work`: from here if it is quick, else from a thread. It tokenises so many characters.

    The check of a grammar may wait for seconds, so it has a thread of its own: no long text stands behind it.
    """
    if params.structured_output is None:
        return work() if num_chars <= LONG_TEXT_CHARS else await asyncio.to_thread(work)
    thread = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
    context = contextvars.copy_context()
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, context.run, work)
    finally:
        thread.shutdown(wait=False)
