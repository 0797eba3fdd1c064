"""The two ends of the control channel: a DEALER per API server, one ROUTER in the supervisor. They connect through a
socket file that is removed once both are connected. Used before there is an event loop, and on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec
import zmq

from tenonry.transport.sockets import make_socket
from tenonry_scale_out.messages import Attachment, ServerMessage, SupervisorMessage

logger = logging.getLogger("tenonry.scale_out")
LINGER_MS = 1000
Work = Callable[[], None]


def read_on_loop(loop: asyncio.AbstractEventLoop, socket: zmq.Socket[bytes], read: Work) -> None:
    """Call `read` now and whenever the socket may have a message: its descriptor is edge-triggered."""
    loop.add_reader(socket.fileno(), read)
    loop.call_soon(read)


def _read_again(loop: asyncio.AbstractEventLoop | None, read: Work) -> None:
    """Read after a send, which may consume the edge of the descriptor."""
    if loop is not None and not loop.is_closed():
        loop.call_soon(read)


class ControlLink:
    """A server's end. `on_stop(abort)` is called on the event loop when the supervisor requests its end."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.on_stop: Callable[[bool], None] = lambda _: None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = make_socket(
            self._context,
            zmq.DEALER,
            attachment.control_address,
            bind=False,
            identity=attachment.identity.encode(),
            linger_ms=LINGER_MS,
        )
        self._decoder = msgspec.msgpack.Decoder(SupervisorMessage)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_message: Callable[[SupervisorMessage], None] = lambda _: None

    def send(self, message: ServerMessage) -> None:
        if not self._socket.closed:
            self._socket.send(msgspec.msgpack.encode(message))
            _read_again(self._loop, self._on_readable)

    def receive(self, timeout_ms: int = 0) -> SupervisorMessage | None:
        """The next message, or None."""
        if not self._socket.poll(timeout_ms):
            return None
        message: SupervisorMessage = self._decoder.decode(self._socket.recv())
        return message

    def listen(
        self, loop: asyncio.AbstractEventLoop, on_message: Callable[[SupervisorMessage], None]
    ) -> None:
        """Pass every message to `on_message` on the event loop from now on."""
        self._loop = loop
        self._on_message = on_message
        read_on_loop(loop, self._socket, self._on_readable)

    def _on_readable(self) -> None:
        while not self._socket.closed and (message := self.receive()) is not None:
            self._on_message(message)

    def close(self) -> None:
        """Close once everything is sent. Idempotent."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and not self._socket.closed:
            with contextlib.suppress(RuntimeError):  # the loop was closed concurrently
                loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()


class ControlRouter:
    """The supervisor's end. `on_message(identity, message)` is called on the event loop."""

    def __init__(self, on_message: Callable[[bytes, ServerMessage], None]) -> None:
        self._on_message = on_message
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.router_mandatory = True
        self._decoder = msgspec.msgpack.Decoder(ServerMessage)
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, address: str) -> None:
        """Accept connections at this address, too."""
        self._socket.bind(address)

    def unbind(self, address: str) -> None:
        """Accept none at this address any more, whose server has ended. A connection there is cut."""
        self._socket.unbind(address)

    def send(self, identity: bytes, message: SupervisorMessage) -> None:
        """Send to one server; a message to one that has ended is dropped."""
        with contextlib.suppress(zmq.ZMQError):
            frame = msgspec.msgpack.encode(message)
            self._socket.send_multipart([identity, frame], zmq.NOBLOCK)
        _read_again(self._loop, self.read)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read on the event loop from now on."""
        self._loop = loop
        read_on_loop(loop, self._socket, self.read)

    def read(self, timeout_ms: int = 0) -> None:
        """Pass on all waiting messages; wait up to `timeout_ms` for the first. Undecodable ones are dropped."""
        while not self._socket.closed and self._socket.poll(timeout_ms):
            timeout_ms = 0
            identity, *body = self._socket.recv_multipart()
            try:
                (frame,) = body
                message: ServerMessage = self._decoder.decode(frame)
            except (
                ValueError,
                RecursionError,
            ) as error:  # invalid UTF-8 is a ValueError, no DecodeError
                logger.warning(
                    "ignored an invalid message from API server %s: %s",
                    identity.decode(errors="replace"),
                    error,
                )
                continue
            self._on_message(identity, message)

    def close(self) -> None:
        """Idempotent."""
        self._context.destroy(linger=0)
