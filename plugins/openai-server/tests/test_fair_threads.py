"""Chats with images of one client hold up no chat of another, over HTTP (fault 22)."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai_server_fakes import ANSWER, CharacterIO, FakeEngine

from tenonry.config import EngineConfig
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry_helper_pool.threads import lent_slot
from tenonry_openai_server.serving.http_thread import HTTPThread
from tenonry_openai_server.serving.listener import listen
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState

CONTENT = [  # a chat with an image is rendered in a thread
    {"type": "image_url", "image_url": {"url": "data:,x"}},
    {"type": "text", "text": "hi"},
]
NUM_HEAVY = 40


class GatedIO(CharacterIO):
    """Chats of the user "heavy" are rendered once the gate opens; `lends`: as those with images wait for helpers."""

    lends = False

    def __init__(self, context: IOProcessorContext) -> None:
        super().__init__(context)
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)

    def render_chat(self, messages, **kwargs):
        if messages[0].get("name") == "heavy":
            self.begun.release()
            if self.lends:
                with lent_slot():
                    assert self.gate.wait(20)
            else:
                assert self.gate.wait(20)
        return super().render_chat(messages, **kwargs)


@pytest.fixture(params=[False, True], ids=["computing", "waiting"])
def served(request, monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)  # what the test leaves is collected
    sock, settings = listen(ServerConfig(port=0, api_key=["a", "b"]))
    config = EngineConfig(model="fake")
    http = HTTPThread(ServerState(config, settings), sock)
    http.start()
    engine = FakeEngine(config)
    engine.io_processor = GatedIO(IOProcessorContext(config, engine.model))
    engine.io_processor.lends = request.param
    http.attach(engine)
    yield f"http://127.0.0.1:{settings.port}", engine
    engine.io_processor.gate.set()
    http.close()


def chat(url: str, key: str, name: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": CONTENT, "name": name}], "max_tokens": 99}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=20)


@pytest.mark.slow
def test_a_chat_of_another_client_is_rendered_beside_many(served):
    url, engine = served
    io = engine.io_processor
    with ThreadPoolExecutor(NUM_HEAVY) as clients:
        heavy = [clients.submit(chat, url, "a", "heavy") for _ in range(NUM_HEAVY)]
        for _ in range(NUM_HEAVY if io.lends else 2):
            assert io.begun.acquire(timeout=20)
        try:
            answer = chat(url, "b", "light")
            assert not any(each.done() for each in heavy)
        finally:
            io.gate.set()
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == ANSWER
        assert {each.result().status_code for each in heavy} == {200}
    method, (stats,) = engine.submitted[-1]
    assert (method, stats.helper) == ("record_extra", "threads")
