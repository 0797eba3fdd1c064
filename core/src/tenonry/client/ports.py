"""A front end's sockets to its engines: one to all of them, one back. Front end."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Sequence
from typing import Any

import zmq

from tenonry.errors import EngineDeadError
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import (
    TCP,
    Context,
    Socket,
    close_all,
    endpoint,
    make_socket,
    receive_frames,
    send_frames,
)


class EnginePorts:
    """Sockets of a front end. Each start of engines binds both, to new files or always to the same ports.

    A file's listener remains open while an engine is connected through it: closing it would close the connection.
    """

    def __init__(self, context: Context, curve: CurveKeys | None) -> None:
        self._context = context
        self._curve = curve
        self._bound: tuple[Socket, Socket] | None = None  # to the engines, and back
        self._files: dict[str, str] = {}  # the address of the second socket by that of the first
        self._addresses: dict[bytes, str] = {}  # address by which an engine connected to the first
        self.returning: set[bytes] = set()  # engines connected to the second

    def bind(self, input_address: str, output_address: str) -> tuple[str, str]:
        """Bind additional addresses; returns them as bound."""
        is_file = not input_address.startswith(TCP)
        if self._bound is None:
            made = functools.partial(make_socket, self._context, bind=True, curve=self._curve)
            self._bound = made(zmq.ROUTER, input_address), made(zmq.PULL, output_address)
        elif is_file:
            self._bound[0].bind(input_address)
            self._bound[1].bind(output_address)
        source, sink = map(endpoint, self._bound)
        if is_file:
            self.unbind_unused()
            self._files[source] = sink
        return source, sink

    def unbind_unused(self) -> None:
        """Close listeners without a connected or connecting engine; files of a connecting engine still exist."""
        used = set(self._addresses.values())
        for source, sink in list(self._files.items()):
            if source not in used and not os.path.exists(source.removeprefix("ipc://")):  # noqa: PTH110
                del self._files[source]
                with contextlib.suppress(zmq.ZMQError):  # `close` ran first
                    self.sockets[0].unbind(source)
                    self.sockets[1].unbind(sink)

    @property
    def sockets(self) -> tuple[Socket, Socket]:
        """Return the sockets to the engines and back. Raises EngineDeadError before `bind`."""
        if self._bound is None:
            raise EngineDeadError("the engines are not connected")
        return self._bound

    def connected(self) -> set[bytes]:
        """Identities of engines that have connected both sockets. Each sends a first frame on both; the one on the
        return socket carries the address.
        """
        source, _ = self.sockets
        while (frames := receive_frames(source)) is not None:
            self._addresses[frames[0]] = frames[-1].decode(errors="replace")
        return self.returning & self._addresses.keys()

    def forget(self, identity: bytes) -> None:
        """Forget an engine that does not connect again."""
        self._addresses.pop(identity, None)
        self.returning.discard(identity)

    def send(self, identity: bytes, frames: Sequence[Any]) -> None:
        """Send frames. Raises ZMQError if no engine of this identity is connected."""
        target, _ = self.sockets
        send_frames(target, (identity, *frames), copy=len(frames) < 5)

    def close(self) -> None:
        """Remove the sockets. Idempotent."""
        close_all(*self._bound or ())
