"""An engine's sockets to its front ends: one in and one out per client. Engine process, its one thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from tenonry.interfaces.request_codec import RequestCodec
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import (
    Context,
    Socket,
    make_socket,
    port_identity,
    receive_frames,
    send_frames,
)

OUTPUT_LINGER_MS = 4000


class ClientPorts:
    """Clients by index; `codec` decodes their requests. `wake` makes a `wait` return, from any thread or signal
    handler.
    """

    def __init__(
        self,
        context: Context,
        codec: RequestCodec,
        engine_index: int,
        curve: CurveKeys | None,
        epoch: int = 1,
    ) -> None:
        self._context = context
        self.take_place(engine_index, epoch)
        self._curve = curve
        self._sockets: dict[int, tuple[Socket, Socket]] = {}  # in and out
        self.codec = codec
        self._poller = zmq.Poller()
        self._wake_read, self.wake_fd = os.pipe()
        for end in (self._wake_read, self.wake_fd):
            os.set_blocking(end, False)
        self._poller.register(self._wake_read, zmq.POLLIN)

    def take_place(self, index: int, epoch: int) -> None:
        """Set index and epoch of this engine; connected sockets keep their identity."""
        self.index = index
        self.epoch = epoch
        self._identity = port_identity(index, epoch)

    def attach(self, client: int, input_address: str, output_address: str) -> None:
        """Connect to a new client. The engine sends first on each socket."""
        source = make_socket(
            self._context, zmq.DEALER, input_address, identity=self._identity, curve=self._curve
        )
        sink = make_socket(
            self._context, zmq.PUSH, output_address, linger_ms=OUTPUT_LINGER_MS, curve=self._curve
        )
        self._sockets[client] = source, sink
        self._poller.register(source, zmq.POLLIN)
        source.send_string(input_address)  # enables the front end's ROUTER to address this engine
        sink.send(self._identity)

    def detach(self, client: int) -> None:
        """Close the sockets of a client that left; an unknown client is ignored."""
        if client in self._sockets:
            source, sink = self._sockets.pop(client)
            self.codec.forget(client)
            self._poller.unregister(source)
            source.close()
            sink.close(linger=0)  # with linger, the engine's own end would wait for a reader

    @property
    def clients(self) -> Sequence[int]:
        return list(self._sockets)

    def listen(self, socket: Socket) -> None:
        """Include this socket in `wait`."""
        self._poller.register(socket, zmq.POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until a message arrives or `wake` is called; False after the timeout."""
        ready = self._poller.poll(timeout_ms)
        for source, _ in ready:
            if source == self._wake_read:
                os.read(self._wake_read, 4096)
        return bool(ready)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: a wake-up is pending already
            os.write(self.wake_fd, b"!")

    def receive(self) -> Iterator[tuple[int, list[bytes]]]:
        """All messages that have arrived, as (client, frames)."""
        for client, (source, _) in list(self._sockets.items()):
            while not source.closed and (frames := receive_frames(source)):
                yield client, frames

    def send(self, client: int, frames: list[Any]) -> None:
        """Send outputs to a client; dropped if it has been detached."""
        pair = self._sockets.get(client)
        if pair is not None:
            send_frames(pair[1], frames, copy=len(frames) == 1)
