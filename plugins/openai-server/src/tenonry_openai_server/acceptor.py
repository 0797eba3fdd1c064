"""Accepts connections, several per turn of the event loop. Front end, event loop.

uvloop's own servers accept one connection per turn. In a flood of new connections a turn takes long, so a newly
connecting probe would wait in the system's queue. Servers that share a socket accept few per turn: connections are kept
alive, so a server that accepts a whole burst would handle all of its requests.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

logger = logging.getLogger("tenonry.server")

MAX_ACCEPTED_PER_TURN = 64
MAX_ACCEPTED_PER_TURN_SHARED = 2  # where other processes listen on the same socket
RETRY_S = 1.0  # after a failed accept without free file descriptors


class Acceptor:
    """Creates a protocol for every connection of a listening socket, until it is closed."""

    def __init__(
        self,
        sock: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        ssl_context: ssl.SSLContext | None,
        *,
        max_per_turn: int,
    ) -> None:
        self._sock = sock
        self._make_protocol = make_protocol
        self._ssl_context = ssl_context
        self._max_per_turn = max_per_turn
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(self._max_per_turn):
            try:
                connection, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # the client has left the queue
            except OSError as error:
                self._pause(error)
                return
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _pause(self, error: OSError) -> None:
        logger.error("accepting no connections for %g s: %s", RETRY_S, error)
        self._loop.remove_reader(self._sock.fileno())
        self._retry = self._loop.call_later(RETRY_S, self._listen)

    async def _serve(self, connection: socket.socket) -> None:
        """Pass the connection to a protocol. One with a failed TLS handshake is dropped."""
        try:
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make_protocol, connection, ssl=self._ssl_context
            )
        except OSError as error:
            logger.debug("a connection was closed before its first request: %s", error)
            connection.close()

    def close(self) -> None:
        """Accept no more. The owner closes the socket."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        for task in self._tasks:
            task.cancel()
