"""Full garbage collections are left to the allocator again once the server drains."""

from __future__ import annotations

import gc

import pytest
from openai_server_fakes import FakeEngine

from tenonry.config import EngineConfig
from tenonry_openai_server.serving.collector import NEVER
from tenonry_openai_server.serving.http_thread import HTTPThread
from tenonry_openai_server.serving.listener import listen
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState


class DrainedEngine(FakeEngine):
    """Keeps the garbage collector's thresholds at the time of the drain."""

    thresholds: tuple[int, int, int] | None = None

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109  the surface of AsyncLLM
        self.thresholds = gc.get_threshold()
        return await super().drain(timeout)


@pytest.fixture
def thread(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what the test leaves is collected
    config = EngineConfig(model="fake")
    sock, settings = listen(ServerConfig(port=0))
    http = HTTPThread(ServerState(config, settings), sock)
    http.start()
    yield http
    http.close()


def test_allocator_starts_full_collections_during_a_drain(thread, eventually):
    before = gc.get_threshold()
    engine = DrainedEngine(EngineConfig(model="fake"))
    thread.attach(engine)
    eventually(lambda: gc.get_threshold()[2] == NEVER)
    thread.request_stop()
    assert thread.wait(0.1) == 0
    assert engine.thresholds == before
