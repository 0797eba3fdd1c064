"""CURVE keys of one run, used by all its TCP sockets. Any process that connects to another node."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import zmq

from tenonry.errors import ConfigError


class CurveKeys(NamedTuple):
    """Keys of one run: sockets that bind are servers with `server_*`, sockets that connect use `client_*`."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @staticmethod
    def generate() -> CurveKeys:
        return CurveKeys(*zmq.curve_keypair(), *zmq.curve_keypair())

    def encode(self) -> str:
        """Return the keys as text, for a child process or a key file. A secret."""
        return " ".join(key.decode() for key in self)

    @staticmethod
    def decode(text: str) -> CurveKeys:
        """Parse the result of `encode`. Raises ConfigError for anything else."""
        keys = text.split()
        if [len(key) for key in keys] != [40] * 4:
            raise ConfigError(
                "invalid key file: it must have four keys of 40 characters (tenonry keys FILE)"
            )
        return CurveKeys(*(key.encode() for key in keys))


def keys_of(text: str) -> CurveKeys | None:
    """Return the keys of a run from `CurveKeys.encode`; None for no text, where all sockets are files of one node."""
    return CurveKeys.decode(text) if text else None


def read_keys(path: str) -> CurveKeys:
    """Read a key file. Raises ConfigError when it is unreadable, or readable by other users."""
    try:
        file = Path(path)
        if file.stat().st_mode & 0o077:
            raise ConfigError(
                f"auth_key_file={path} can be read by others; make it private: chmod 600 {path}"
            )
        return CurveKeys.decode(file.read_text("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth_key_file={path} cannot be read: {error}") from None
