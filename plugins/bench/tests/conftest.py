"""A model folder without weights, and a server with set answers."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

VOCAB_SIZE = 400
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
    "vocab_size": VOCAB_SIZE,
    "eos_token_id": 2,
    "dtype": "float32",
}
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {f"w{i}": i for i in range(VOCAB_SIZE)},
        "unk_token": "w0",
    },
}


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """Configuration and tokenizer: all that an engine with the worker `null` reads."""
    folder = tmp_path_factory.mktemp("models") / "words"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture(autouse=True)
def freezes_nothing(monkeypatch) -> None:
    """Objects of a benchmark are collected after its test, and objects frozen before the first test stay frozen."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def bench(tmp_path, capsys) -> Callable[..., tuple[dict[str, Any], str]]:
    """Run `tenonry bench WORDS --json …` in this process; the report and the printed text."""
    from tenonry_bench.__main__ import main

    def run(*words: object) -> tuple[dict[str, Any], str]:
        file = tmp_path / "report.json"
        status = main([*map(str, words), "--json", str(file)])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        return json.loads(file.read_text()), printed.out

    return run


class FakeServer:
    """Answers each connection with the pieces of `reply(method, path, body)`, written one by one, and the end."""

    def __init__(self, reply: Callable[[str, str, bytes], list[bytes]]) -> None:
        self._reply = reply
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await reader.readexactly(int(headers["content-length"]))
            method, path, _ = first.split(" ")
            self.requests.append((method, path, headers, body))
            for piece in self._reply(method, path, body):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
        except ConnectionError:
            pass  # the client has left
        finally:
            writer.close()

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            mine = asyncio.current_task()
            others = [task for task in asyncio.all_tasks() if task is not mine]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0.01)  # closed transports notify their protocols

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    """Start fake servers, and stop them after the test."""
    servers: list[FakeServer] = []

    def start(reply: Callable[[str, str, bytes], list[bytes]]) -> FakeServer:
        servers.append(FakeServer(reply))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def chunked(*pieces: bytes) -> list[bytes]:
    """A 200 answer of server-sent events in chunked coding, one chunk per piece."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return [
        head,
        *(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces),
        b"0\r\n\r\n",
    ]


def plain(status: int, body: bytes) -> list[bytes]:
    """An answer with a length."""
    return [f"HTTP/1.1 {status} Word\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body]


def completion(body: bytes) -> list[bytes]:
    """Stream of an OpenAI-compatible server for a completion: a piece per token, the usage, the end."""
    count = json.loads(body)["max_tokens"]
    piece = b'data: {"choices":[{"index":0,"text":" w"}]}\n\n'
    usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}}
    return chunked(
        *[piece] * count, b"data: " + json.dumps(usage).encode() + b"\n\n", b"data: [DONE]\n\n"
    )


@pytest.fixture(scope="session")
def answers():
    """Ready-made answers: `chunked`, `plain`, `completion`."""

    class Answers:
        pass

    Answers.chunked, Answers.plain, Answers.completion = map(
        staticmethod, (chunked, plain, completion)
    )
    return Answers
