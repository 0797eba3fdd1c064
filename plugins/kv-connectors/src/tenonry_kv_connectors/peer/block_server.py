"""The side of a rank that has blocks: serves its exported blocks. Worker process, in the exchange's thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import zmq

from tenonry.transport.sockets import Socket
from tenonry_kv_connectors.peer.exported_blocks import ExportedBlocks
from tenonry_kv_connectors.peer.protocol import PART_BLOCKS, Ask, Part, Refused, checksum, to_text

logger = logging.getLogger("tenonry.kv_connector")


class BlockServer:
    """`latest` is the number of the newest exported prompt: a request for a later one waits for it, for
    `patience` seconds at most, because the engine may answer its client before the step that exports the blocks.
    """

    def __init__(
        self, socket: Socket, exported: ExportedBlocks, layout: bytes, patience: float
    ) -> None:
        self._socket = socket
        self._exported = exported
        self._layout = layout
        self._patience = patience
        self._waiting: list[tuple[float, bytes, Ask]] = []  # (until, who, ask)
        self._latest = 0

    @property
    def waits(self) -> bool:
        """An ask waits for its prompt."""
        return bool(self._waiting)

    def exported(self, number: int) -> None:
        """All prompts up to this one were exported, or are gone."""
        self._latest = max(self._latest, number)
        waiting = self._waiting
        self._waiting = []
        for until, who, ask in waiting:
            self._answer(who, ask, until)

    def take(self, who: bytes, ask: Ask, now: float) -> None:
        """Answer an ask, now or later."""
        self._answer(who, ask, now + self._patience)

    def expire(self, now: float) -> None:
        """Reject requests that have waited too long."""
        late = [(who, ask) for until, who, ask in self._waiting if until <= now]
        self._waiting = [entry for entry in self._waiting if entry[0] > now]
        for who, ask in late:
            self._refuse(who, ask, "no such prompt")

    def _answer(self, who: bytes, ask: Ask, until: float) -> None:
        if ask.layout != self._layout:
            self._refuse(who, ask, "its blocks are laid out otherwise")
            return
        blocks = self._exported.get(ask.token)
        if blocks is None and ask.number > self._latest:
            self._waiting.append((until, who, ask))
            return
        if blocks is None:
            self._refuse(who, ask, "they are gone")
        elif not all(digest in blocks for digest in ask.digests):
            self._refuse(who, ask, "the prompts differ")
        else:
            self._send(who, ask, blocks)

    def _send(self, who: bytes, ask: Ask, blocks: Mapping[bytes, bytes]) -> None:
        for position in range(0, len(ask.digests), PART_BLOCKS):
            digests = ask.digests[position : position + PART_BLOCKS]
            contents = [blocks[digest] for digest in digests]
            part = Part(ask.id, position, checksum(digests, contents))
            self._reply(who, to_text(part), *contents)

    def _refuse(self, who: bytes, ask: Ask, reason: str) -> None:
        self._reply(who, to_text(Refused(ask.id, reason)))

    def _reply(self, who: bytes, *frames: bytes) -> None:
        try:
            self._socket.send_multipart([who, *frames], copy=False)
        except zmq.ZMQError as error:
            logger.debug("a peer disconnected before its blocks were sent: %s", error)
