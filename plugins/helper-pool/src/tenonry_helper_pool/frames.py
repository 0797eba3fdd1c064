"""Frames between the owner of a pool and its helper processes: a length, followed by its bytes. Both processes."""

from __future__ import annotations

import select
import socket
import struct
import time

LENGTH = struct.Struct("<Q")


class Ended(Exception):
    """The other side has closed the connection, or its process has ended."""


class TooLate(Exception):
    """The deadline has passed."""


def send(channel: socket.socket, *parts: bytes | memoryview) -> None:
    """Send one frame. Raises Ended."""
    try:
        channel.sendall(LENGTH.pack(sum(len(part) for part in parts)))
        for part in parts:
            channel.sendall(part)
    except OSError:
        raise Ended from None


def receive(channel: socket.socket, deadline: float | None = None) -> memoryview:
    """The next frame. Raises Ended, and TooLate after `deadline` on the monotonic clock."""
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size, deadline))
    return _exactly(channel, length, deadline)


def is_readable(channel: socket.socket, seconds: float) -> bool:
    """Return True if data can be read, or the connection has ended, within `seconds`."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    return bool(poller.poll(1000 * seconds))


def _exactly(channel: socket.socket, length: int, deadline: float | None) -> memoryview:
    data = memoryview(bytearray(length))
    rest = data
    while rest:
        if deadline is not None and not is_readable(channel, max(0.0, deadline - time.monotonic())):
            raise TooLate
        try:
            count = channel.recv_into(rest)
        except OSError:
            raise Ended from None
        if not count:
            raise Ended
        rest = rest[count:]
    return data
