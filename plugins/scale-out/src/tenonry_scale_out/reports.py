"""Reports of a server to the first node of its group, which reads them in `HeadlessNodes`. Front end, a thread."""

from __future__ import annotations

import secrets
import socket as sockets
import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from tenonry.interfaces.launcher import Death
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket, make_socket
from tenonry_scale_out.nodes import NODE_IDENTITY, READY, REPORT_EVERY_S, SILENCE_S, NodeReport

LINGER_MS = 1000


class NodeReports:
    """Says every second that this node lives, and hears whether the first one does.

    `engines`: those that are reported, none at first. `is_heard`: the first node has answered; `is_complete`: it said
    that all engines of the group are ready. `on_silence(reason)` is called, from the thread, while a first node that
    has answered says nothing for `SILENCE_S` seconds.
    """

    def __init__(self, address: str, keys: CurveKeys, on_silence: Callable[[str], None]) -> None:
        self._address = address
        self._keys = keys
        self._on_silence = on_silence
        self.engines: list[int] = []
        self.is_heard = False
        self.is_complete = False
        self._ended: dict[int, Death] = {}
        self._heard_at = 0.0
        self._due = threading.Event()
        self._is_closing = False
        self._context: Context = zmq.Context()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Report from now on. Raises ConfigError for an address that is none."""
        # Not the name of the host: a second server of the same rank must not be taken for the first.
        identity = NODE_IDENTITY + secrets.token_bytes(8)
        socket = make_socket(
            self._context, zmq.DEALER, self._address, identity=identity, curve=self._keys
        )
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="tenonry-reports", daemon=True
        )
        self._thread.start()

    def ended(self, engine: int, death: Death) -> None:
        """Report the end of an engine; the first death counts. From any thread."""
        self._ended.setdefault(engine, death)
        self._due.set()

    def close(self) -> None:
        """Send the last report. Idempotent."""
        self._is_closing = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()
        self._context.term()  # once the last report is sent, or the time to linger is over

    def _run(self, socket: Socket) -> None:
        while not self._is_closing:
            self._due.clear()
            self._report(socket)
            self._hear(socket)
            self._due.wait(REPORT_EVERY_S)
        self._report(socket)
        socket.close(LINGER_MS)

    def _report(self, socket: Socket) -> None:
        ended = dict(self._ended) if self.engines else {}
        report = NodeReport(sockets.gethostname(), self.engines, ended)
        socket.send(msgspec.msgpack.encode(report))

    def _hear(self, socket: Socket) -> None:
        """Wait at most a second for the answer."""
        if socket.poll(round(REPORT_EVERY_S * 1000)):
            while socket.poll(0):
                self.is_complete |= socket.recv() == READY
            self._heard_at = time.monotonic()
            self.is_heard = True
        elif self.is_heard and time.monotonic() > self._heard_at + SILENCE_S:
            self._on_silence(
                f"the server of rank 0 at {self._address} has said nothing for {SILENCE_S:.0f} s"
            )
