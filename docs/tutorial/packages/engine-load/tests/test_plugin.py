"""The conformance suite of routes, and the route in an application of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from fastapi import FastAPI
from tenonry_testkit.route import RouteContract

from engine_load.plugin import EngineLoadSettings, build


class TestEngineLoad(RouteContract):
    route = "engine_load.plugin:build"
    requests: ClassVar[Sequence[tuple[str, str, Any, int]]] = [("GET", "/requests", None, 503)]


@pytest.mark.parametrize(("unfinished", "is_busy"), [(2, False), (3, True)])
def test_it_reports_the_load(unfinished: int, is_busy: bool) -> None:
    engine = SimpleNamespace(num_unfinished_requests=unfinished)
    application = FastAPI()
    settings = EngineLoadSettings(busy_above=2)
    application.include_router(build(SimpleNamespace(engine=engine, settings=settings)))

    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/requests")

    assert asyncio.run(get()).json() == {"unfinished": unfinished, "is_busy": is_busy}
