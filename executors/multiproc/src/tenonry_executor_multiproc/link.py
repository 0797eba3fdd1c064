"""The engine's end of the traffic with its ranks: packets go down to all of them, answers come up from each."""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence

from tenonry.errors import LaunchError
from tenonry.transport.serial import Frame
from tenonry_executor_multiproc.broadcast import Wait, open_broadcast
from tenonry_executor_multiproc.packets import Packet, PacketStream, pack, unpack

RECEIVE_BYTES = 1 << 18


class Link:
    """One broadcast down and one socket up per rank. For one thread, except `interrupt`.

    Raises LaunchError when the system has no memory or no file descriptors left for it.
    """

    def __init__(self, num_ranks: int, num_slots: int) -> None:
        self._lock = threading.Lock()  # guards the wake-up pipe against `close`
        self._ours: dict[int, tuple[int, socket.socket, PacketStream]] = {}
        self._theirs: list[socket.socket] = []
        self._poll = select.poll()
        self.broadcast = open_broadcast(num_ranks, num_slots)
        self._wake: tuple[int, int] | None = None
        try:
            self._wake = os.pipe()
            for rank in range(num_ranks):
                self._open(rank)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"no sockets for {num_ranks} ranks: {error.strerror}; raise ulimit -n"
            ) from error
        for fd in self._wake:
            os.set_blocking(fd, False)
        self._poll.register(self._wake[0], select.POLLIN)

    def _open(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._ours[ours.fileno()] = (rank, ours, PacketStream())
        self._theirs.append(theirs)
        self._poll.register(ours.fileno(), select.POLLIN)

    def ends(self, rank: int) -> tuple[str, int, tuple[int, ...]]:
        """A rank's ends: the broadcast's address, its answering socket, and all file descriptors to inherit."""
        address, fds = self.broadcast.address(rank)
        answers = self._theirs[rank].fileno()
        return address, answers, (*fds, answers)

    def handed_down(self, rank: int) -> None:
        """The rank runs: close the engine's copies of its ends, so that they close when it dies."""
        self.broadcast.handed_down(rank)
        self._theirs[rank].close()

    def send(self, kind: int, sequence: int, frames: Sequence[Frame], wait: Wait) -> None:
        """Send a packet to all ranks. `wait(fd, event)` is called while a rank has no room; answers may come then."""
        self.broadcast.send(pack(kind, sequence, frames), wait)

    def receive(
        self, deadline: float, also: tuple[int, int] | None = None
    ) -> Iterator[tuple[int, Packet]]:
        """(rank, answer) of everything that has arrived, after waiting for it, `interrupt`, or the deadline.

        `also` is a file descriptor and its event to wake up for.
        """
        if also is not None:
            self._poll.register(*also)
        try:
            ready = self._poll.poll(max(0, math.ceil(1000 * (deadline - time.monotonic()))))
        finally:
            if also is not None:
                self._poll.unregister(also[0])
        for fd, _ in ready:
            if fd in self._ours:
                rank, end, stream = self._ours[fd]
                for data in stream.feed(self._read(fd, end)):
                    yield rank, unpack(data)
            elif self._wake is not None and fd == self._wake[0]:
                os.read(fd, 4096)

    def _read(self, fd: int, end: socket.socket) -> bytes:
        """The bytes that have arrived. An end that closed is dropped; the watcher of its process reports the death."""
        try:
            data = end.recv(RECEIVE_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._poll.unregister(fd)
            del self._ours[fd]
            end.close()
        return data

    def interrupt(self) -> None:
        """Wake up `receive`, from any thread."""
        with self._lock, contextlib.suppress(BlockingIOError):  # full: a wake-up is pending already
            if self._wake is not None:
                os.write(self._wake[1], b"!")

    def close(self) -> None:
        """Close everything. Idempotent."""
        with self._lock:
            wake = self._wake
            self._wake = None
        for fd in wake or ():
            os.close(fd)
        for _, end, _ in self._ours.values():
            end.close()
        self._ours.clear()
        for end in self._theirs:
            end.close()
        self.broadcast.close()
