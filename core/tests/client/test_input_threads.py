"""Requests that take long to prepare: the check of a grammar holds up no long text (EC-6)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

from tenonry.client.input_processor import LONG_TEXT_CHARS, prepared
from tenonry.sampling_params import SamplingParams, StructuredOutput

BOUND = SamplingParams(structured_output=StructuredOutput(regex="a"))
FREE = SamplingParams()
LONG = LONG_TEXT_CHARS + 1
place = contextvars.ContextVar("place", default="")


def test_checks_that_wait_hold_up_no_long_text():
    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        go_on = threading.Event()
        checks = [asyncio.create_task(prepared(go_on.wait, BOUND, 0)) for _ in range(40)]
        try:
            assert await asyncio.wait_for(prepared(lambda: "text", FREE, LONG), 20) == "text"
            assert await asyncio.wait_for(prepared(lambda: "known", BOUND, 0), 20) == "known"
        finally:
            go_on.set()
        assert await asyncio.gather(*checks) == [True] * 40

    asyncio.run(main())


def test_what_is_quick_takes_no_thread():
    thread = asyncio.run(prepared(threading.current_thread, FREE, LONG_TEXT_CHARS))
    assert thread is threading.current_thread()


def test_the_context_goes_along():
    place.set("here")
    for params in (BOUND, FREE):
        assert asyncio.run(prepared(place.get, params, LONG)) == "here"


def test_long_texts_and_grammars_have_a_thread():
    for params in (BOUND, FREE):
        thread = asyncio.run(prepared(threading.current_thread, params, LONG))
        assert thread is not threading.current_thread()
