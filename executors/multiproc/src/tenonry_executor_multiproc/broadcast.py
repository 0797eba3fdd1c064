"""One writer, N readers: sends a step to all ranks of an engine at the same time. Engine and rank processes.

On Linux a packet is written once into anonymous shared memory (a memfd that the ranks inherit: there is no name that
could be left behind), and an eventfd per rank signals it; a second one returns slots. Reading and writing go through
system calls instead of a mapping, so full memory is an error and not a signal, and a slot grows with its packet: slots
lie 4 GiB apart in a sparse file, which takes memory only for what was written. Elsewhere each rank has a separate
socket, and receives a copy.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

from tenonry.errors import LaunchError, TenonryError, WireError
from tenonry_executor_multiproc.packets import PacketStream, packet_size

SLOT_BYTES = 1 << 32
RESERVED_BYTES = 1 << 16  # of each slot, taken at the start
READ_BYTES = 1 << 14  # more than a decoding step of a few hundred rows
Wait = Callable[[int, int], None]


class Broadcast(Protocol):
    """The engine's side."""

    def address(self, rank: int) -> tuple[str, tuple[int, ...]]:
        """Address for `open_reader` in the rank's process, and the file descriptors to inherit."""
        ...

    def handed_down(self, rank: int) -> None:
        """The rank has its file descriptors."""
        ...

    def send(self, data: bytes, wait: Wait) -> None:
        """Send a packet to every rank. `wait(fd, poll event)` is called while a rank is too far behind."""
        ...

    def behind(self) -> list[int]:
        """Ranks that have not finished all packets; all, if that is unknown."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class Reader(Protocol):
    """A rank's side."""

    def receive(self) -> bytes:
        """Block until the next packet; there may be more bytes behind it. Raises EOFError when the engine is gone."""
        ...

    def finish(self) -> None:
        """The packet is done with: its slot is free, and the rank one step further."""
        ...


def has_shared_memory() -> bool:
    """Return True if the system has memfd and eventfd."""
    return hasattr(os, "memfd_create") and hasattr(os, "eventfd")


def open_broadcast(num_ranks: int, num_slots: int) -> Broadcast:
    """Raises LaunchError when memory or file descriptors do not suffice."""
    return (
        SharedBroadcast(num_ranks, num_slots) if has_shared_memory() else SocketBroadcast(num_ranks)
    )


def open_reader(address: str) -> Reader:
    """Open the reader of an address from `Broadcast.address`."""
    kind, _, rest = address.partition(":")
    numbers = [int(number) for number in rest.split(",")]
    return SharedReader(*numbers) if kind == "memfd" else SocketReader(*numbers)


class SharedBroadcast:
    """A ring of slots in a memfd. A rank's `filled` counts packets to read, its `freed` those it has finished."""

    def __init__(self, num_ranks: int, num_slots: int) -> None:
        self._num_slots = num_slots
        self._sent = 0
        self._finished = [0] * num_ranks
        self._fds: list[int] = []
        try:
            self._memory = self._keep(os.memfd_create("tenonry-steps"))
            for slot in range(num_slots):
                os.posix_fallocate(self._memory, slot * SLOT_BYTES, RESERVED_BYTES)
            self._filled = [
                self._keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE))
                for _ in range(num_ranks)
            ]
            self._freed = [
                self._keep(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
                for _ in range(num_ranks)
            ]
        except OSError as error:
            self.close()
            raise LaunchError(
                f"no shared memory for the steps of {num_ranks} ranks ({num_slots} slots of {RESERVED_BYTES} bytes): "
                f"{error.strerror}; free memory, or raise the limits of open files and of file size (ulimit -n, -f)"
            ) from error

    def _keep(self, fd: int) -> int:
        self._fds.append(fd)
        return fd

    def address(self, rank: int) -> tuple[str, tuple[int, ...]]:
        fds = (self._memory, self._filled[rank], self._freed[rank])
        return f"memfd:{','.join(map(str, fds))},{self._num_slots}", fds

    def handed_down(self, rank: int) -> None:
        """No-op: both sides keep the descriptors."""

    def send(self, data: bytes, wait: Wait) -> None:
        if len(data) > SLOT_BYTES:
            raise WireError(
                f"a message of {len(data)} bytes is larger than {SLOT_BYTES}, which is all that fits"
            )
        for rank, fd in enumerate(self._freed):
            while self._sent - self._finished[rank] >= self._num_slots and not self._update(rank):
                wait(fd, select.POLLIN)
        self._write(data, self._sent % self._num_slots * SLOT_BYTES)
        self._sent += 1
        for fd in self._filled:
            os.eventfd_write(fd, 1)

    def _write(self, data: bytes, at: int) -> None:
        rest = memoryview(data)
        while rest:
            try:
                written = os.pwrite(self._memory, rest, at)
            except OSError as error:
                raise TenonryError(
                    f"no shared memory for a message of {len(data)} bytes to the ranks: {error.strerror}"
                ) from error
            rest, at = rest[written:], at + written

    def _update(self, rank: int) -> bool:
        """Add the packets that a rank has finished since the last call; False if there are none."""
        with contextlib.suppress(BlockingIOError):
            self._finished[rank] += os.eventfd_read(self._freed[rank])
            return True
        return False

    def behind(self) -> list[int]:
        for rank in range(len(self._finished)):
            self._update(rank)
        return [rank for rank, finished in enumerate(self._finished) if finished < self._sent]

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class SharedReader:
    """See `SharedBroadcast`."""

    def __init__(self, memory: int, filled: int, freed: int, num_slots: int) -> None:
        self._memory = memory
        self._filled = filled
        self._freed = freed
        self._num_slots = num_slots
        self._received = 0
        for fd in (memory, filled, freed):
            os.set_inheritable(fd, False)

    def receive(self) -> bytes:
        os.eventfd_read(self._filled)
        at = self._received % self._num_slots * SLOT_BYTES
        self._received += 1
        data = os.pread(self._memory, READ_BYTES, at)
        size = packet_size(data)
        return (
            data
            if size <= len(data)
            else b"".join([data, *self._rest(at + len(data), size - len(data))])
        )

    def _rest(self, at: int, size: int) -> Iterator[bytes]:
        while size:
            data = os.pread(self._memory, size, at)
            at, size = at + len(data), size - len(data)
            yield data

    def finish(self) -> None:
        os.eventfd_write(self._freed, 1)


class SocketBroadcast:
    """A socket per rank."""

    def __init__(self, num_ranks: int) -> None:
        self._ours: list[socket.socket] = []
        self._theirs: list[socket.socket] = []
        try:
            for _ in range(num_ranks):
                ours, theirs = socket.socketpair()
                ours.setblocking(False)
                self._ours.append(ours)
                self._theirs.append(theirs)
        except OSError as error:
            self.close()
            raise LaunchError(
                f"no sockets for {num_ranks} ranks: {error.strerror}; raise ulimit -n"
            ) from error

    def address(self, rank: int) -> tuple[str, tuple[int, ...]]:
        fd = self._theirs[rank].fileno()
        return f"socket:{fd}", (fd,)

    def handed_down(self, rank: int) -> None:
        self._theirs[rank].close()

    def send(self, data: bytes, wait: Wait) -> None:
        for ours in self._ours:
            rest = memoryview(data)
            with contextlib.suppress(
                BrokenPipeError, ConnectionResetError
            ):  # a dead rank is noticed by its watcher
                while rest:
                    try:
                        rest = rest[ours.send(rest) :]
                    except BlockingIOError:
                        wait(ours.fileno(), select.POLLOUT)

    def behind(self) -> list[int]:
        return list(range(len(self._ours)))

    def close(self) -> None:
        for end in (*self._ours, *self._theirs):
            end.close()


class SocketReader:
    """See `SocketBroadcast`."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)
        self._stream = PacketStream()
        self._packets: list[bytes] = []

    def receive(self) -> bytes:
        while not self._packets:
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError("the engine closed its end")
            self._packets.extend(self._stream.feed(data))
        return self._packets.pop(0)

    def finish(self) -> None:
        """No-op: packets in sockets are not counted."""
