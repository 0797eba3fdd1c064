"""Fork servers that launchers of one process share: engines that replace others begin as theirs did. Any thread."""

from __future__ import annotations

import threading

from tenonry.launch.forks import ForkServer
from tenonry.launch.supervise import start_fork_server


class SharedForks:
    """Servers by what they import. One is started for its first holder, and ends with its last."""

    def __init__(self, imports: str) -> None:
        self._imports = imports
        self._servers: dict[str, ForkServer] = {}
        self._holders: dict[str, set[object]] = {}
        self._lock = threading.Lock()

    def hold(self, argument: str, holder: object) -> ForkServer | None:
        """The server that calls `imports` with `argument`, which runs; None where that cannot be forked.

        Asked for each start, since what ended it since the last one does not say so. Raises LaunchError.
        """
        with self._lock:
            server = self._servers.get(argument)
            if server is None or not server.is_alive:
                if server is not None and server.has_given_up:
                    return None
                server = start_fork_server(self._imports, argument)
                self._servers[argument] = server
            self._holders.setdefault(argument, set()).add(holder)
            return server

    def release(self, holder: object) -> None:
        """A holder needs none any more. Idempotent."""
        with self._lock:
            for argument, holders in list(self._holders.items()):
                holders.discard(holder)
                if not holders:
                    del self._holders[argument]
                    self._servers.pop(argument).close()
