"""The handshake between an engine of this node and the first node, with this node's front end in between.

The front end learns from it what only the first node knows, and becomes the engine's client 0. Front end, at start.
"""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenonry.errors import LaunchError
from tenonry.messages import (
    CoordinatorFacts,
    EngineFacts,
    EngineHandshakeMessage,
    FailedMessage,
    HandshakeMetadata,
    ReadyMessage,
)
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket, engine_identity, make_socket

LINGER_MS = 1000
ANSWER_S = 10.0  # the first node takes up a HELLO within a tenth of a second
# What the leader of a group adds to the URL where the ranks meet: each engine belongs to a server of its own.
BY_RANK = "?servers=by-rank"


class HandshakeRelay:
    """Passes the messages of one engine, which connects to `here`, on to `address`, and the answer back with `own`, the
    sockets of this front end, in front of those of the first node's.

    `is_answered`: by the first node, which knows the `coordinator`. `facts` are there once the engine is ready.
    """

    def __init__(
        self, here: str, address: str, engine: int, keys: CurveKeys, own: tuple[str, str]
    ) -> None:
        self._engine = engine
        self._address = address
        self._keys = keys
        self._own = own
        self.is_answered = False
        self.coordinator: CoordinatorFacts | None = None
        self.facts: EngineFacts | None = None
        self._asked_at = 0.0
        self._messages = msgspec.msgpack.Decoder(EngineHandshakeMessage)
        self._context: Context = zmq.Context()
        # Two servers with one rank would push each other aside for ever, and the first node lose what they said.
        self._context.setsockopt(zmq.RECONNECT_IVL, -1)
        self._here = make_socket(self._context, zmq.ROUTER, here, bind=True)
        self._connected: Socket | None = None
        self._poller = zmq.Poller()
        self._poller.register(self._here, zmq.POLLIN)

    def turn(self, timeout_ms: int) -> None:
        """Pass on what comes within that time. Raises LaunchError when the engine, or the group, cannot start."""
        for socket, _ in self._poller.poll(timeout_ms):
            if socket is self._here:
                self._from_engine(self._here.recv_multipart()[-1])
            else:
                self._from_first(self._there.recv())
        if self._asked_at and not self.is_answered:
            self._check_answer()

    @property
    def _there(self) -> Socket:
        """Connected with the first message: a connection takes the place of an earlier one with its identity."""
        if self._connected is None:
            self._connected = make_socket(
                self._context,
                zmq.DEALER,
                self._address,
                identity=engine_identity(self._engine),
                curve=self._keys,
            )
            self._poller.register(self._connected, zmq.POLLIN)
        return self._connected

    def _from_engine(self, frame: bytes) -> None:
        message = self._messages.decode(frame)
        self._tell_first(frame)
        self._asked_at = self._asked_at or time.monotonic()
        if isinstance(message, ReadyMessage):
            self.facts = message.facts
        elif isinstance(message, FailedMessage):
            raise LaunchError(f"engine {self._engine} could not start: {message.error}")

    def _from_first(self, frame: bytes) -> None:
        metadata = msgspec.msgpack.decode(frame, type=HandshakeMetadata)
        if not metadata.rendezvous.endswith(BY_RANK):
            self._refuse(
                f"the server at {self._address} leads no group of servers; start it with --data-parallel-rank 0, or "
                "this one with --headless"
            )
        self.is_answered = True
        self.coordinator = metadata.coordinator
        metadata.addresses.insert(0, self._own)
        answer = msgspec.msgpack.encode(metadata)
        self._here.send_multipart([engine_identity(self._engine), answer])

    def _check_answer(self) -> None:
        """Raise LaunchError if the answer is overdue: of two servers with one rank, the later may be known alone."""
        if time.monotonic() > self._asked_at + ANSWER_S:
            raise LaunchError(
                f"the server of rank 0 at {self._address} answers this node, but not engine {self._engine}; another "
                f"server of data_parallel_rank={self._engine} may be starting: give each its own rank"
            )

    def _refuse(self, reason: str) -> None:
        """End the start on both sides."""
        self._tell_first(msgspec.msgpack.encode(FailedMessage(error=reason)))
        raise LaunchError(reason)

    def _tell_first(self, frame: bytes) -> None:
        """Once the first node has closed its socket there is no connection, and never will be: a send would wait for
        one. That it is gone is noticed elsewhere.
        """
        with contextlib.suppress(zmq.Again):
            self._there.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Once what was passed on has been sent."""
        self._context.destroy(linger=LINGER_MS)
