"""The run directory: a private folder for the sockets of one run. The process that starts the run."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
import weakref

from tenonry.errors import ConfigError

MAX_SOCKET_PATH = 103  # limit of macOS; Linux allows four more


class RunDirectory:
    """A private folder (0700) for the sockets of one run, named after this process; removed by `close` or at exit."""

    def __init__(self) -> None:
        self.path = os.path.join(  # noqa: PTH118
            tempfile.gettempdir(), f"tenonry-{os.getpid()}-{secrets.token_urlsafe(4)}"
        )
        self._maker = os.getpid()
        # Before the folder exists: a signal may interrupt this constructor.
        self._finalizer = weakref.finalize(self, _remove, self.path, self._maker)
        os.mkdir(self.path, 0o700)  # noqa: PTH102
        self._numbers = itertools.count()

    def address(self, name: str = "") -> str:
        """Return an ipc address in the folder; without a name, a unique one."""
        path = os.path.join(self.path, name or str(next(self._numbers)))  # noqa: PTH118
        if len(path) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"the socket path {path} is too long for the system; set TMPDIR to a shorter folder"
            )
        return f"ipc://{path}"

    def close(self) -> None:
        _remove(self.path, self._maker)
        self._finalizer.detach()  # after the folder is removed, for the same reason


def _remove(path: str, maker: int) -> None:
    """Remove a folder, unless this process is a fork of its maker, which still uses it."""
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)
