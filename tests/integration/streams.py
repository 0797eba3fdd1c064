"""Concurrent streams, each a little later than the one before; one is left early. Test process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tenonry import AsyncLLM, SamplingParams


async def one_by_one(
    engine: AsyncLLM, prompt: str, asked: list[dict[str, Any]]
) -> list[tuple[list[int], str]]:
    """Tokens and text of each, all of which every stream showed once and in order."""
    streams = [_stream(engine, prompt, number, each) for number, each in enumerate(asked)]
    found = await asyncio.gather(_left(engine, prompt), *streams)
    return [each for each in found if each is not None]


async def _stream(
    engine: AsyncLLM, prompt: str, number: int, asked: dict[str, Any]
) -> tuple[list[int], str]:
    await asyncio.sleep(0.03 * number)
    seen: list[int] = []
    text = ""
    async for output in engine.generate(prompt, SamplingParams(**asked), request_id=str(number)):
        token_ids = output.outputs[0].token_ids
        assert token_ids[: len(seen)] == seen
        seen = token_ids
        text = output.outputs[0].text
    return seen, text


async def _left(engine: AsyncLLM, prompt: str) -> None:
    """Not read to its end."""
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    async with aclosing(engine.generate(prompt, params, request_id="left")) as outputs:
        async for output in outputs:
            if len(output.outputs[0].token_ids) > 20:
                return
