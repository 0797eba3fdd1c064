"""Engines on other nodes: each such node reports its own every second, and both sides notice when the other is gone.

`NodeWatch` runs beside the front end, on the socket of the handshake; the other end is in tenonry-front-ends.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from tenonry.transport.sockets import Socket

logger = logging.getLogger(__name__)
NODE_IDENTITY = b"node "
REPORT_EVERY_S = 1.0
SILENCE_S = 5.0
POLL_MS = 200
READY = b"ready"


class NodeReport(msgspec.Struct, array_like=True):
    """Node to front end, every second: the engines it runs, and those of them that ended, with the reason."""

    node: str
    engines: list[int]
    ended: dict[int, str] = {}


class NodeWatch:
    """Receives reports until `close`. `on_death(engine index, reason)` is called from its thread."""

    def __init__(self, on_death: Callable[[int, str], None]) -> None:
        self._on_death = on_death
        # The last report and its time, by identity: two nodes may have one host name.
        self._last: dict[bytes, tuple[float, NodeReport]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._decoder = msgspec.msgpack.Decoder(NodeReport)

    def start(self, socket: Socket) -> None:
        """Take over the bound ROUTER, and close it in the end."""
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="tenonry-nodes", daemon=True
        )
        self._thread.start()

    def receive(self, socket: Socket, frames: list[bytes]) -> NodeReport | None:
        """One report, or None if it is none. The answer says that the front end lives; READY, that all engines do."""
        try:
            report = self._decoder.decode(frames[-1])
        except (ValueError, RecursionError) as error:  # invalid UTF-8 is no msgspec.DecodeError
            logger.warning("dropped a report of a node: %s", error)
            return None
        self._last[frames[0]] = (time.monotonic(), report)
        with contextlib.suppress(zmq.ZMQError):  # it was the node's last report
            socket.send_multipart([frames[0], READY if self._thread else b"ok"])
        for index, reason in report.ended.items():
            self._on_death(index, f"{reason} on node {report.node}")
        return report

    def _run(self, socket: Socket) -> None:
        while not self._stop.is_set():
            if socket.poll(POLL_MS):
                self.receive(socket, socket.recv_multipart())
            self._check_silence()
        socket.close()

    def _check_silence(self) -> None:
        now = time.monotonic()
        for identity, (received, report) in list(self._last.items()):
            if now <= received + SILENCE_S:
                continue
            del self._last[identity]
            for index in report.engines:
                self._on_death(
                    index,
                    f"engine {index}: its node {report.node} has said nothing for {SILENCE_S:.0f} s",
                )

    def close(self) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
