"""Sockets that are read slowly: a client's, and those between engines and front ends. No other stream waits, and each
gets all of its tokens.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from ledger import STORY, Ledger

from tenonry_openai_server.serving import listener

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
STOPPED_S = 2.0  # more than --step-timeout allows an engine
PAUSE_S = 0.02  # of the slow client, between one byte and the next
BUFFER_BYTES = 1 << 14
# Much text per token: the sockets' buffers are soon full.
WORDY = {
    "prompt": STORY, "max_tokens": 200, "n": 4, "temperature": 0.9, "seed": 5, "ignore_eos": True, "logprobs": 20,
    "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True},
}  # fmt: skip


class SlowClient(threading.Thread):
    """Reads one byte after another, with pauses, and everything without pauses after `hurry`."""

    def __init__(self, url: str, *, in_hurry: bool = False) -> None:
        super().__init__(daemon=True)
        where = urlsplit(url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self._socket.settimeout(40)
        self._socket.connect((where.hostname, where.port))
        self._hurries = threading.Event()
        if in_hurry:
            self._hurries.set()
        self.received = bytearray()
        self.events: list[dict] = []

    def run(self) -> None:
        body = json.dumps(WORDY).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        )
        head += f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with self._socket as connection:
            connection.sendall(head.encode() + body)
            while data := connection.recv(1 << 16 if self._hurries.is_set() else 1):
                self.received += data
                self._hurries.wait(PAUSE_S)

    def told(self) -> dict:
        """All received results, to the end."""
        self._hurries.set()
        self.join()
        ledger = Ledger()
        for line in bytes(self.received).split(b"\n"):
            data = line.removeprefix(b"data: ").strip()
            if data == b"[DONE]":
                ledger.is_done = True
            elif data.startswith(b"{"):
                self.events.append(json.loads(data))
                ledger.hear(self.events[-1])
        found = ledger.told()
        del found["logprobs"]  # another batch sums in another order
        return found


@pytest.fixture
def _small_buffers(monkeypatch):
    """Of the server's sockets, which is a fork of this process: the system's own would hold a whole stream."""
    listen = listener._listen_tcp

    def listening(*arguments):
        found = listen(*arguments)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        return found

    monkeypatch.setattr(listener, "_listen_tcp", listening)


@pytest.mark.usefixtures("_small_buffers")
def test_a_client_that_reads_byte_by_byte(serve, expected):
    disturbed = serve("")
    url = disturbed.server.ready().url
    alone = SlowClient(url, in_hurry=True)
    alone.start()
    wanted = alone.told()
    assert {len(ids) for ids in wanted["ids"].values()} == {200}
    slow = SlowClient(url)
    slow.start()
    ledgers = disturbed.run()
    assert len(slow.received) < len(alone.received) // 100, "all others came first"
    assert slow.told() == wanted
    assert len(slow.events) < len(alone.events), "what it had not read yet came together"
    disturbed.check(expected, ledgers)


@pytest.mark.parametrize(
    ("title", "flags"),
    [("", ()), ("api-server", ("--api-server-count", "2"))],
    ids=["the only one", "one of two"],
)
def test_a_front_end_that_stands_still_while_engines_produce(title, flags, serve, expected):
    """It reads the messages that arrived during the pause, and treats no engine as dead."""
    disturbed = serve("engine.after_execute=sleep:0.01", "--step-timeout", "1", *flags)
    server = disturbed.server
    due = [title]

    def on_tokens(tokens: int) -> None:
        if due and tokens >= 20:
            wanted = due.pop()
            pids = [pid for name, pid in server.pids().items() if name.startswith(wanted)]
            stop(pids[0] if wanted else server.process.pid)

    pausers = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        pausers.append(threading.Timer(STOPPED_S, os.kill, (pid, signal.SIGCONT)))
        pausers[0].start()

    began = time.monotonic()
    ledgers = disturbed.run(on_tokens)
    assert pausers
    pausers[0].join()
    assert time.monotonic() - began >= STOPPED_S
    assert "died" not in server.output
    disturbed.check(expected, ledgers)
