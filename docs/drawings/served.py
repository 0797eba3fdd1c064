"""A real server under load, for the pictures of the docs."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHAT = "You are a storyteller for children. Tell a story about the little fox, number {number}."
END_S = 60


@contextlib.contextmanager
def served(model: str, *flags: str) -> Iterator[str]:
    """Serve a model while the context is open; the value is the server's URL."""
    sys.path.append(str(ROOT))
    from dev.first_use import free_port, wait_until_ready

    port = free_port()
    command = [sys.executable, "-m", "tenonry", "serve", model, "--port", str(port), *flags]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_until_ready(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(END_S)


@contextlib.contextmanager
def busy(url: str, model: str, clients: int) -> Iterator[None]:
    """Send chats from several clients, each as soon as its last is answered, while the context is open."""
    ended = threading.Event()

    def chat(client: int) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        headers = {"content-type": "application/json"}
        number = client
        while not ended.is_set():
            message = {"role": "user", "content": CHAT.format(number=number)}
            body = {"model": model, "messages": [message], "max_tokens": 64 + 32 * (number % 5)}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            connection.getresponse().read()
            number += clients
        connection.close()

    threads = [threading.Thread(target=chat, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
