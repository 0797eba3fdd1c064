"""Garbage on the sockets between processes, while engines restart and while they run: streams continue.

Socket files exist only while processes connect, and those of a coordinator as long as it runs. Messages of known peers
are covered by `core/tests/engine/test_proc.py` and `core/tests/client/test_core_client.py`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
import zmq

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
MESSAGES = (
    [b""],
    [b"\xc1"],
    [b"\x93\x01"],
    [b"", b"\x00" * 8, b"\xff" * 100],
    [b"\x00" * (1 << 20)],
    [bytes(range(256))] * 20,
)
KINDS = (zmq.DEALER, zmq.PUSH, zmq.SUB)
SEND_TIMEOUT_MS = 100


class Vandal(threading.Thread):
    """Sends garbage to every socket file that appears in a folder: by ZMQ, and as mere bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder = folder
        self._is_over = threading.Event()
        self.seen: set[Path] = set()
        self.num_sent = 0

    def run(self) -> None:
        with zmq.Context() as context:
            while not self._is_over.wait(0.005):
                for file in self._new():
                    self._shout(file)
                    for kind in KINDS:
                        self._send(context, kind, file)

    def _new(self) -> set[Path]:
        with contextlib.suppress(FileNotFoundError):  # a folder removed in the meantime
            found = {file for file in self._folder.rglob("*") if file.is_socket()} - self.seen
            self.seen |= found
            return found
        return set()

    def _shout(self, file: Path) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(file))
            raw.sendall(bytes(range(256)) * 10)

    def _send(self, context: zmq.Context, kind: int, file: Path) -> None:
        with context.socket(kind) as peer:
            peer.linger = SEND_TIMEOUT_MS
            peer.sndtimeo = SEND_TIMEOUT_MS
            peer.immediate = True
            peer.connect(f"ipc://{file}")
            with contextlib.suppress(zmq.ZMQError):  # it is no socket of that kind, or gone
                for message in MESSAGES if kind != zmq.SUB else ():
                    peer.send_multipart(message)
                    self.num_sent += 1
                if kind == zmq.SUB:
                    peer.subscribe(b"\xff" * 300)

    def end(self) -> None:
        self._is_over.set()
        self.join()


@pytest.mark.parametrize(
    ("flags", "least"),
    [((), 3), (("--api-server-count", "2"), 5)],
    ids=["one server", "several servers"],
)
def test_garbage_while_an_engine_is_started_again(flags, least, serve, expected):
    disturbed = serve("engine.before_execute=kill@9;engine.before_start=sleep:0.7@2", *flags)
    disturbed.server.ready()
    vandal = Vandal(disturbed.sockets)
    vandal.start()
    try:
        ledgers = disturbed.run()
    finally:
        vandal.end()
    assert len(vandal.seen) >= least
    assert vandal.num_sent >= least
    disturbed.check(expected, ledgers)
