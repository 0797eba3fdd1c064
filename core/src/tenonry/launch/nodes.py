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

logger = logging.getLogger(__name__)
NODE_IDENTITY = b"node "
REPORT_EVERY_S = 1.0
SILENCE_S = 5.0


class NodeReport(msgspec.Struct, array_like=True):
    """Node to front end, every second: the engines it runs, and those of them that ended, with the reason."""

    node: str
    engines: list[int]
    ended: dict[int, str] = {}


class NodeWatch:
    """Listens for reports until `close`. `on_death(engine index, reason)`, from its thread."""

    def __init__(self, on_death: Callable[[int, str], None]) -> None:
        self._on_death = on_death
        self._last: dict[
            bytes, tuple[float, NodeReport]
        ] = {}  # by identity: nodes may share a host name
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._decoder = msgspec.msgpack.Decoder(NodeReport)

    def start(self, socket: zmq.Socket[bytes]) -> None:
        """Take over the bound ROUTER, and close it in the end."""
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="tenonry-nodes", daemon=True
        )
        self._thread.start()

    def receive(self, socket: zmq.Socket[bytes], frames: list[bytes]) -> NodeReport | None:
        """One report, or None if it is none; it is acknowledged, so that the node knows that we live."""
        try:
            report = self._decoder.decode(frames[-1])
        except (ValueError, RecursionError) as error:  # text that is no UTF-8 is no DecodeError
            logger.warning("dropped a report of a node: %s", error)
            return None
        self._last[frames[0]] = (time.monotonic(), report)
        with contextlib.suppress(zmq.ZMQError):  # it said its last word, and is gone
            socket.send_multipart([frames[0], b"ok"])
        for index, reason in report.ended.items():
            self._on_death(index, f"{reason} on node {report.node}")
        return report

    def _run(self, socket: zmq.Socket[bytes]) -> None:
        while not self._stop.is_set():
            if socket.poll(200):
                self.receive(socket, socket.recv_multipart())
            now = time.monotonic()
            for identity, (heard, report) in list(self._last.items()):
                if now > heard + SILENCE_S:
                    del self._last[identity]
                    for index in report.engines:
                        reason = f"engine {index}: its node {report.node} has said nothing for {SILENCE_S:.0f} s"
                        self._on_death(index, reason)
        socket.close()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
