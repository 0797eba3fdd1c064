"""The event loop's thread: its end, and ownership of full garbage collections while the server drains."""

from __future__ import annotations

import gc
import threading

import pytest
from openai_server_fakes import FakeEngine

from tenonry.config import EngineConfig
from tenonry_openai_server.app import create_app
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
def unstarted(monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what the test leaves is collected
    sock, settings = listen(ServerConfig(port=0))
    return HTTPThread(ServerState(EngineConfig(model="fake"), settings), sock)


@pytest.fixture
def thread(unstarted):
    http = unstarted
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


@pytest.mark.parametrize("way", ["close", "request_stop"])
def test_a_stop_while_the_application_is_imported_is_not_lost(unstarted, monkeypatch, way):
    """A signal before the event loop exists: nothing would end the thread afterwards."""
    is_importing, goes_on = threading.Event(), threading.Event()

    def slow_app(state):
        is_importing.set()
        assert goes_on.wait(20)
        return create_app(state)

    monkeypatch.setattr("tenonry_openai_server.app.create_app", slow_app)
    starting = threading.Thread(target=unstarted.start, daemon=True)
    starting.start()
    assert is_importing.wait(20)
    stopping = threading.Thread(target=getattr(unstarted, way), daemon=True)
    stopping.start()
    stopping.join(0.2)  # `close` waits for the thread
    goes_on.set()
    stopping.join(20)
    assert not stopping.is_alive()
    assert unstarted.wait(0.1) == 0
    unstarted.close()
