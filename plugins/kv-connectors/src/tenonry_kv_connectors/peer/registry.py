"""Addresses of this engine's ranks for block requests; each rank reports its own once, on a socket of the engine.
Engine process.
"""

from __future__ import annotations

import time

import msgspec
import zmq

from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, endpoint, make_socket, receive_frames, tcp_address

read_rank = msgspec.msgpack.Decoder(tuple[int, str]).decode


class Registry:
    """`address` goes to the ranks with the first steps, until all have answered."""

    def __init__(self, host: str, keys: CurveKeys, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._found: dict[int, str] = {}
        self._context: Context = zmq.Context()
        self._socket = make_socket(
            self._context, zmq.PULL, tcp_address(host, 0), bind=True, curve=keys
        )
        self.address = endpoint(self._socket)

    @property
    def is_complete(self) -> bool:
        return len(self._found) == self._num_ranks

    def ranks(self, seconds: float) -> tuple[str, ...] | None:
        """Return an address per rank, in order; None if some are unknown after `seconds`."""
        end = time.monotonic() + seconds
        while not self.is_complete:
            self._receive()
            left = end - time.monotonic()
            if self.is_complete or left <= 0:
                break
            self._socket.poll(max(1, int(left * 1000)))
        if not self.is_complete:
            return None
        return tuple(self._found[rank] for rank in range(self._num_ranks))

    def _receive(self) -> None:
        while (frames := receive_frames(self._socket)) is not None:
            rank, address = read_rank(frames[0])
            self._found[rank] = address

    def close(self) -> None:
        self._socket.close(0)
        self._context.destroy(linger=0)
