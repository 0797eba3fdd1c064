"""The loading side of a rank: requests blocks from a peer, checks them, writes them into the KV cache. Worker process,
in the exchange's thread.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import zmq

from tenonry.interfaces.kv_connector import BlockStore
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket, make_socket
from tenonry_kv_connectors.peer.protocol import Ask, Had, Refused, checksum, read_answer, to_text

logger = logging.getLogger("tenonry.kv_connector")
MAX_PEERS = 64  # connections that are kept while nothing is fetched


class Pull:
    """One request's blocks on their way. `digests` and `blocks` run in parallel; `written` of them are in the cache."""

    def __init__(self, handle: int, peer: str, token: str, due: float) -> None:
        self.handle = handle
        self.peer = peer
        self.token = token
        self.due = due
        self.digests: list[bytes] = []
        self.blocks: list[int] = []
        self.written = 0


class BlockClient:
    """`on_end(handle, worked)` is called once for each pull. What comes after that is not written: the blocks may
    belong to another request by then.
    """

    def __init__(
        self,
        context: Context,
        keys: CurveKeys,
        blocks: BlockStore,
        layout: bytes,
        on_end: Callable[[int, bool], None],
    ) -> None:
        self._context = context
        self._keys = keys
        self._blocks = blocks
        self._layout = layout
        self._on_end = on_end
        self._ids = itertools.count(1)
        self._pulls: dict[int, Pull] = {}
        self._sockets: dict[str, Socket] = {}  # by address
        self._num_failed = 0

    @property
    def sockets(self) -> Sequence[Socket]:
        """Those on which answers come."""
        return list(self._sockets.values())

    @property
    def is_idle(self) -> bool:
        return not self._pulls

    def start(
        self,
        handle: int,
        peer: str,
        token: str,
        number: int,
        pairs: Sequence[Sequence[Any]],
        due: float,
    ) -> None:
        """Ask `peer` for [digest, block id] each."""
        pull = Pull(handle, peer, token, due)
        pull.digests = [digest for digest, _ in pairs]
        pull.blocks = [block for _, block in pairs]
        key = next(self._ids)
        self._pulls[key] = pull
        try:
            ask = Ask(key, token, number, self._layout, pull.digests)
            self._socket(peer).send(to_text(ask))
        except Exception as error:  # noqa: BLE001 - a peer that cannot be asked is a miss
            self._fail(key, str(error))

    def _socket(self, peer: str) -> Socket:
        socket = self._sockets.get(peer)
        if socket is None:
            in_use = {pull.peer for pull in self._pulls.values()}
            idle = [address for address in self._sockets if address not in in_use]
            while len(self._sockets) >= MAX_PEERS and idle:
                self._sockets.pop(idle.pop(0)).close(0)
            socket = make_socket(self._context, zmq.DEALER, peer, curve=self._keys)
            self._sockets[peer] = socket
        return socket

    def take(self, frames: Sequence[bytes]) -> None:
        """An answer."""
        try:
            answer = read_answer(frames[0])
        except msgspec.MsgspecError as error:
            logger.warning("KV connector 'peer': ignored an invalid answer from a peer: %s", error)
            return
        pull = self._pulls.get(answer.id)
        if pull is None:
            return
        if isinstance(answer, Refused):
            self._fail(answer.id, answer.reason)
            return
        try:
            self._write(pull, answer.position, answer.checksum, frames[1:])
        except Exception as error:  # noqa: BLE001 - whatever is wrong with what came is a miss
            self._fail(answer.id, str(error))
            return
        if pull.written == len(pull.blocks):
            self._socket(pull.peer).send(to_text(Had(pull.token)))
            self._end(answer.id, worked=True)

    def _write(self, pull: Pull, position: int, expected: bytes, contents: Sequence[bytes]) -> None:
        """Raises ValueError unless these are the next blocks, undamaged; BlockStore.write checks their sizes."""
        end = position + len(contents)
        if position != pull.written or not contents or end > len(pull.blocks):
            raise ValueError(f"blocks {position} to {end} came, {pull.written} was to be next")
        if checksum(pull.digests[position:end], contents) != expected:
            raise ValueError("blocks came damaged")
        self._blocks.write(pull.blocks[position:end], contents)
        pull.written = end

    def expire(self, now: float) -> None:
        """Give up pulls that took too long."""
        late = [key for key, pull in self._pulls.items() if pull.due <= now]
        for key in late:
            self._fail(key, "the peer did not answer in time")

    def close(self) -> None:
        """Give up all."""
        for key in list(self._pulls):
            self._end(key, worked=False)
        for socket in self._sockets.values():
            socket.close(0)
        self._sockets.clear()

    def _fail(self, key: int, reason: str) -> None:
        pull = self._pulls[key]
        self._num_failed += 1
        level = logging.WARNING if self._num_failed == 1 else logging.DEBUG
        logger.log(
            level,
            "KV connector 'peer': blocks of %s were not loaded (%s); their tokens are computed instead",
            pull.peer,
            reason,
        )
        self._end(key, worked=False)

    def _end(self, key: int, *, worked: bool) -> None:
        self._on_end(self._pulls.pop(key).handle, worked)
