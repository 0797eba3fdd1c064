"""Engines on other nodes: each such node reports its own every second, and both sides notice when the other is gone.
Where an engine died the front end says when the node starts it again.

`HeadlessNodes` runs beside the front end, on the socket of the handshake; `node` and `reports` are the other end.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.interfaces.launcher import Death
from tenonry.transport.sockets import Socket

logger = logging.getLogger("tenonry.nodes")
REPORT_EVERY_S = 1.0
SILENCE_S = 5.0
POLL_MS = 100
NODE_IDENTITY = b"node "  # first bytes of the identities of nodes on the socket of the handshake
ALIVE = b"ok"
READY = b"ready"


class NodeReport(msgspec.Struct, array_like=True):
    """Node to front end, every second: the engines it runs, and those of them that ended, and how, since it
    followed the order of this number. `process`: a number of its own for each process of a node.
    """

    node: str
    engines: list[int]
    ended: dict[int, Death] = {}
    number: int = 0
    process: int = 0


class NodeOrder(msgspec.Struct, array_like=True):
    """Front end to node: stop these engines, and start them again for the handshake at `address`, if there is one.
    `plugins`: theirs, as `plugins_of` has them.
    """

    number: int
    engines: list[int]
    address: str = ""
    plugins: str = ""


def plugins_of(config: EngineConfig) -> str:
    """Those that another one may take the place of while nodes run."""
    connector = config.kv_connector.name if config.kv_connector else "none"
    return f"scheduler {config.scheduler.name}, KV connector {connector}"


class HeadlessNodes:
    """Receives reports until `close`. `on_death(engine index, death)` is called from its thread; so is `on_return` for
    the engines of a node that was started again.

    `ended`: engines that ended since they were ordered last, and why. `is_running`: `start` has been called.
    """

    def __init__(
        self, on_death: Callable[[int, Death], None], on_return: Callable[[int, Death], None]
    ) -> None:
        self._on_death = on_death
        self._on_return = on_return
        # The last report and its time, by identity: two nodes may have one host name.
        self._last: dict[bytes, tuple[float, NodeReport]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.ended: dict[int, Death] = {}
        self.is_running = False
        self._numbers = itertools.count(1)
        self._ordered: dict[int, int] = {}  # the number of the last order, by engine
        self._processes: dict[int, int] = {}  # that reported each engine
        self._orders: queue.SimpleQueue[tuple[bytes, NodeOrder]] = queue.SimpleQueue()
        self._decoder = msgspec.msgpack.Decoder(NodeReport)

    def start(self, socket: Socket) -> None:
        """Take over the bound ROUTER, and close it in the end."""
        self.is_running = True
        self._thread = threading.Thread(
            target=self._run, args=(socket,), name="tenonry-nodes", daemon=True
        )
        self._thread.start()

    def order(
        self, indexes: Iterable[int], address: str = "", config: EngineConfig | None = None
    ) -> None:
        """Stop engines, and start them for the handshake at `address`, if there is one. From any thread.

        Raises LaunchError if a node that should start one is gone.
        """
        plugins = plugins_of(config) if config else ""
        left = set(indexes)
        for identity, (_, report) in list(self._last.items()):
            theirs = sorted(left.intersection(report.engines))
            left.difference_update(theirs)
            if theirs:
                order = NodeOrder(next(self._numbers), theirs, address, plugins)
                for index in theirs:
                    self._ordered[index] = order.number
                    self.ended.pop(index, None)
                self._orders.put((identity, order))
        if left and address:
            raise LaunchError(f"the node of engines {sorted(left)} is gone")

    def receive(self, socket: Socket, frames: list[bytes]) -> str:
        """Read and answer a report: ALIVE, or READY once all engines are. Returns why engines of that node ended, or
        an empty string.
        """
        try:
            report = self._decoder.decode(frames[-1])
        except (ValueError, RecursionError) as error:  # invalid UTF-8 is no msgspec.DecodeError
            logger.warning("ignored an invalid report from a node: %s", error)
            return ""
        self._last[frames[0]] = (time.monotonic(), report)
        with contextlib.suppress(zmq.ZMQError):  # it was the node's last report
            socket.send_multipart([frames[0], READY if self.is_running else ALIVE])
        self._find_new_process(report)
        for index, death in report.ended.items():
            # A lower number says how that one ended before.
            if report.number >= self._ordered.get(index, 0):
                self._ended(index, Death(f"{death.reason} on node {report.node}", death.began_step))
        reasons = "; ".join(death.reason for death in report.ended.values())
        return reasons and f"{reasons} on node {report.node}"

    def _find_new_process(self, report: NodeReport) -> None:
        """It has the engines of one before, and starts none that is not ordered."""
        for index in report.engines:
            is_new = self._processes.get(index, report.process) != report.process
            self._processes[index] = report.process
            if is_new:
                self._ordered.pop(index, None)
                reason = f"engine {index}: its node {report.node} restarted"
                self.ended[index] = Death(reason, lost_node=report.node)
                self._on_return(index, self.ended[index])

    def _ended(self, index: int, death: Death) -> None:
        self.ended[index] = death
        self._on_death(index, death)

    def _run(self, socket: Socket) -> None:
        while not self._stop.is_set():
            if socket.poll(POLL_MS):
                self.receive(socket, socket.recv_multipart())
            self._send_orders(socket)
            self._check_silence()
        socket.close()

    def _send_orders(self, socket: Socket) -> None:
        while not self._orders.empty():
            identity, order = self._orders.get()
            with contextlib.suppress(zmq.ZMQError):  # the node is gone, as its silence will show
                socket.send_multipart([identity, msgspec.msgpack.encode(order)])

    def _check_silence(self) -> None:
        now = time.monotonic()
        for identity, (received, report) in list(self._last.items()):
            if now > received + SILENCE_S:
                del self._last[identity]
                node = report.node
                for each in report.engines:
                    reason = f"engine {each}: its node {node} has said nothing for {SILENCE_S:g} s"
                    self._ended(each, Death(reason, lost_node=node))

    def close(self) -> None:
        """Stop receiving. Idempotent."""
        self._stop.set()
        if self._thread:
            self._thread.join()
