"""The route in an application of its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
from fastapi import FastAPI
from tenonry.plugin.manager import resolve_point
from tenonry_openai_server.points import ROUTES

from v1_route.plugin import build


def test_the_server_finds_it() -> None:
    assert resolve_point(ROUTES, "v1_route.plugin:build")[0] is build


def test_it_counts_unfinished_requests() -> None:
    application = FastAPI()
    application.include_router(
        build(SimpleNamespace(engine=SimpleNamespace(num_unfinished_requests=3)))
    )

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/requests")

    assert asyncio.run(get()).json() == {"unfinished": 3}
