"""The thread of one rank that gives blocks to peers and takes blocks from them. Worker process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import zmq

from tenonry.interfaces.kv_connector import BlockStore
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import (
    Context,
    Socket,
    endpoint,
    make_socket,
    receive_frames,
    tcp_address,
)
from tenonry_kv_connectors.peer.block_client import BlockClient
from tenonry_kv_connectors.peer.block_server import BlockServer
from tenonry_kv_connectors.peer.exported_blocks import ExportedBlocks
from tenonry_kv_connectors.peer.protocol import PART_BLOCKS, Ask, layout_digest, read_ask, to_text
from tenonry_kv_connectors.stores.ended import EndedTransfers

logger = logging.getLogger("tenonry.kv_connector")
TICK_S = 0.05  # how often deadlines are looked at
WAKE = "inproc://wake"


class Exchange:
    """Everything but `ended`, `address` and the calls of the step happens in the thread."""

    def __init__(
        self,
        blocks: BlockStore,
        keys: CurveKeys,
        *,
        host: str,
        limit: int,
        hold: float,
        timeout: float,
    ) -> None:
        self._blocks = blocks
        self._keys = keys
        self._timeout = timeout
        self._context: Context = zmq.Context()
        self._socket = make_socket(
            self._context, zmq.ROUTER, tcp_address(host, 0), bind=True, curve=keys
        )
        self.address = endpoint(self._socket)
        layout = layout_digest(blocks.layout)
        self._exported = ExportedBlocks(limit, hold)
        self._server = BlockServer(self._socket, self._exported, layout, timeout)
        self._ended = EndedTransfers()
        self._client = BlockClient(self._context, keys, blocks, layout, self._ended.add)
        self._registry: Socket | None = None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wakes = make_socket(self._context, zmq.PULL, WAKE, bind=True)
        self._wake = make_socket(self._context, zmq.PUSH, WAKE)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="kv-connector-peer", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ called by the step
    def register(self, registry: str, rank: int) -> None:
        """Publish this rank's address to the engine."""
        self._do(lambda: self._register(registry, rank))

    def hold(
        self, handle: int, token: str, number: int, readers: int, pairs: Sequence[Sequence[Any]]
    ) -> None:
        """Copy [digest, block id] each to the exported blocks."""
        self._do(lambda: self._hold(handle, token, number, readers, pairs))

    def pull(
        self, handle: int, peer: str, token: str, number: int, pairs: Sequence[Sequence[Any]]
    ) -> None:
        """Bring [digest, block id] each from a peer."""
        due = time.monotonic() + self._timeout
        self._do(lambda: self._client.start(handle, peer, token, number, pairs, due))

    def clear(self) -> None:
        """Nothing that is held now is given away any more."""
        self._do(self._exported.clear)

    def ended(self) -> tuple[list[int], list[int]]:
        """Handles whose transfer ended since the last call: (done, failed)."""
        return self._ended.take()

    def close(self) -> None:
        """Give up what is under way."""
        self._closing = True
        self._wake_up()
        self._thread.join()
        self._wake.close(0)
        self._context.destroy(linger=0)

    def _do(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        self._wake_up()

    def _wake_up(self) -> None:
        """Never waits: where the queue is full the thread wakes up anyway, and one that has ended takes nothing."""
        with contextlib.suppress(zmq.Again):
            self._wake.send(b"", zmq.NOBLOCK)

    # ------------------------------------------------------------------ in the thread
    def _run(self) -> None:
        poller = zmq.Poller()
        while not self._closing:
            for socket in [self._wakes, self._socket, *self._client.sockets]:
                poller.register(socket, zmq.POLLIN)
            is_idle = self._client.is_idle and not len(self._exported) and not self._server.waits
            poller.poll(None if is_idle else TICK_S * 1000)
            try:
                self._turn()
            except Exception:
                logger.exception("KV connector 'peer': a transfer failed")
            poller = zmq.Poller()
        self._client.close()
        for socket in (self._wakes, self._socket, self._registry):
            if socket is not None:
                socket.close(0)

    def _turn(self) -> None:
        while receive_frames(self._wakes) is not None:
            pass
        while (job := self._next_job()) is not None:
            job()
        now = time.monotonic()
        while (frames := receive_frames(self._socket)) is not None:
            self._answer(frames, now)
        for socket in self._client.sockets:
            while not socket.closed and (frames := receive_frames(socket)) is not None:
                self._client.take(frames)
        now = time.monotonic()
        self._exported.expire(now)
        self._server.expire(now)
        self._client.expire(now)

    def _next_job(self) -> Callable[[], None] | None:
        try:
            return self._jobs.get_nowait()
        except Empty:
            return None

    def _answer(self, frames: Sequence[bytes], now: float) -> None:
        who, *rest = frames
        try:
            ask = read_ask(b"".join(rest))
        except msgspec.MsgspecError as error:
            logger.warning("KV connector 'peer': ignored an invalid message from a peer: %s", error)
            return
        if isinstance(ask, Ask):
            self._server.take(who, ask, now)
        else:
            self._exported.had(ask.token)

    def _register(self, registry: str, rank: int) -> None:
        if self._registry is None:
            self._registry = make_socket(self._context, zmq.PUSH, registry, curve=self._keys)
            self._registry.send(to_text((rank, self.address)))

    def _hold(
        self, handle: int, token: str, number: int, readers: int, pairs: Sequence[Sequence[Any]]
    ) -> None:
        worked = False
        try:
            held: dict[bytes, bytes] = {}
            if self._exported.room <= 0:
                pairs = []
            for start in range(0, len(pairs), PART_BLOCKS):
                part = pairs[start : start + PART_BLOCKS]
                contents = self._blocks.read([block for _, block in part])
                for (digest, _), data in zip(part, contents, strict=True):
                    held[digest] = data
            self._exported.put(token, held, readers, time.monotonic())
            worked = True
        except Exception:
            logger.exception("KV connector 'peer': blocks could not be copied")
        finally:
            self._ended.add(handle, worked)
            self._server.exported(number)
