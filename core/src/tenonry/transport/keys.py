"""The CURVE keys of one run, which every TCP socket of it uses. Any process that talks to another node."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import zmq

from tenonry.errors import ConfigError


class CurveKeys(NamedTuple):
    """Keys of one run: every socket that binds is a server with `server_*`, every one that connects uses `client_*`."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @staticmethod
    def generate() -> CurveKeys:
        return CurveKeys(*zmq.curve_keypair(), *zmq.curve_keypair())

    def encode(self) -> str:
        """The keys as text, for a child of ours or a key file. A secret."""
        return " ".join(key.decode() for key in self)

    @staticmethod
    def decode(text: str) -> CurveKeys:
        """The keys that `encode` wrote. Raises ConfigError for anything else."""
        keys = text.split()
        if [len(key) for key in keys] != [40] * 4:
            raise ConfigError(
                "invalid key file: it must have four keys of 40 characters (tenonry keys FILE)"
            )
        return CurveKeys(*(key.encode() for key in keys))


def keys_of(text: str) -> CurveKeys | None:
    """The keys of a run as `CurveKeys.encode` wrote them; None for no text, where all sockets are files of one node."""
    return CurveKeys.decode(text) if text else None


def read_keys(path: str) -> CurveKeys:
    """The keys of a key file. Raises ConfigError when it cannot be read, or when others can."""
    try:
        file = Path(path)
        if file.stat().st_mode & 0o077:
            raise ConfigError(
                f"auth_key_file={path} can be read by others; make it private: chmod 600 {path}"
            )
        return CurveKeys.decode(file.read_text("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth_key_file={path} cannot be read: {error}") from None
