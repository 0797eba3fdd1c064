"""Addresses and sockets between our processes. Any process that talks to another.

On one node sockets are files in a private folder of the run; across nodes they are TCP with CURVE and an explicit
address. Ports are bound and read back, never probed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from socket import AI_NUMERICHOST, getaddrinfo
from typing import Any, Literal, NamedTuple, cast

import zmq

from tenonry.errors import ConfigError

IDENTITY_BYTES = 2
TCP = "tcp://"
# As plain numbers: pyzmq's flags are enums, and every `|` of theirs costs as much as sending a frame.
SEND_MORE, RECEIVE_MORE, EVENTS, READABLE = int(zmq.SNDMORE), int(zmq.RCVMORE), int(zmq.EVENTS), int(zmq.POLLIN)
MAX_SOCKET_PATH = 103  # what macOS can name; Linux has room for four more


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
        if len(keys) != 4 or any(len(key) != 40 for key in keys):
            raise ConfigError("this is no set of keys: four keys of 40 characters are needed (tenonry keys FILE)")
        return CurveKeys(*(key.encode() for key in keys))


def read_keys(path: str) -> CurveKeys:
    """The keys of a key file. Raises ConfigError when it cannot be read, or when others can."""
    try:
        file = Path(path)
        if file.stat().st_mode & 0o077:
            raise ConfigError(f"auth_key_file={path} can be read by others; make it private: chmod 600 {path}")
        return CurveKeys.decode(file.read_text("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"auth_key_file={path} cannot be read: {error}") from None


class RunDirectory:
    """A private folder (0700) for the sockets of one run, named after our pid; gone by `close`, at exit at last."""

    def __init__(self) -> None:
        self.path = os.path.join(tempfile.gettempdir(), f"tenonry-{os.getpid()}-{secrets.token_urlsafe(4)}")  # noqa: PTH118
        self._maker = os.getpid()
        self._finalizer = weakref.finalize(self, _remove, self.path, self._maker)  # first: a signal may interrupt us
        os.mkdir(self.path, 0o700)  # noqa: PTH102
        self._numbers = itertools.count()

    def address(self, name: str = "") -> str:
        """An ipc address in the folder; without a name, one that nobody else gets."""
        path = os.path.join(self.path, name or str(next(self._numbers)))  # noqa: PTH118
        if len(path) > MAX_SOCKET_PATH:
            raise ConfigError(f"the socket path {path} is too long for the system; set TMPDIR to a shorter folder")
        return f"ipc://{path}"

    def close(self) -> None:
        _remove(self.path, self._maker)
        self._finalizer.detach()  # last, for the same reason


def _remove(path: str, maker: int) -> None:
    """Remove a folder, but not in a process that its maker forked: the run goes on without that one."""
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)


def tcp_address(host: str, port: int) -> str:
    """An address across nodes; port 0 is any free one. Raises ConfigError for a host that means every interface."""
    return f"{TCP}{_explicit(host)}:{port}"


def _explicit(host: str) -> str:
    """The host as it stands in an address; one that means every interface is refused (ConfigError)."""
    bare = host.strip().strip("[]")
    everywhere = bare in {"", "*"}
    with contextlib.suppress(OSError):  # a name; but "0" and "0.0" are old spellings of 0.0.0.0
        found = getaddrinfo(bare, None, flags=AI_NUMERICHOST)
        everywhere |= any(ipaddress.ip_address(address[0]).is_unspecified for *_, address in found)
    if everywhere:
        raise ConfigError(f"a socket for other nodes needs an explicit address of this one, not '{host}'")
    return f"[{bare}]" if ":" in bare else bare


def engine_identity(engine_index: int) -> bytes:
    """The ZMQ identity of an engine: its index as two bytes, little endian."""
    return engine_index.to_bytes(IDENTITY_BYTES, "little")


def engine_index_of(identity: bytes) -> int:
    """The engine behind an identity."""
    return int.from_bytes(identity, "little")


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    address: str,
    *,
    bind: bool,
    identity: bytes | None = None,
    linger_ms: int = 0,
    curve: CurveKeys | None = None,
    keep: Literal["all", "connected", "latest"] = "all",
) -> zmq.Socket[bytes]:
    """A socket without high-water marks. TCP without keys, or bound to every interface, is refused (ConfigError).

    `keep`: "connected" keeps nothing for a peer that is not there, and sending raises zmq.Again instead; "latest" lets
    a reader keep the last message only.
    """
    is_tcp = address.startswith(TCP)
    if is_tcp and curve is None:
        raise ConfigError(f"{address}: a TCP socket needs CURVE keys")
    if is_tcp and bind:
        _explicit(address.removeprefix(TCP).rpartition(":")[0])
    socket = context.socket(kind)
    socket.ipv6 = is_tcp and "[" in address
    socket.linger = linger_ms
    socket.set_hwm(0)
    socket.immediate = keep == "connected"
    if keep == "latest":
        socket.conflate = True
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    if kind == zmq.ROUTER:
        socket.router_mandatory = socket.router_handover = True  # who comes back need not wait for its own end
    if curve is not None and is_tcp:
        _secure(socket, curve, server=bind)
    try:
        (socket.bind if bind else socket.connect)(address)
    except zmq.ZMQError as error:
        socket.close(0)
        taken = "; stop the process that has it, or choose another port" if error.errno == zmq.EADDRINUSE else ""
        raise ConfigError(f"{address}: {error.strerror}{taken}") from error
    return socket


def _secure(socket: zmq.Socket[bytes], curve: CurveKeys, *, server: bool) -> None:
    if server:
        socket.curve_server = True
        socket.curve_publickey, socket.curve_secretkey = curve.server_public, curve.server_secret
    else:
        socket.curve_serverkey = curve.server_public
        socket.curve_publickey, socket.curve_secretkey = curve.client_public, curve.client_secret


def send_frames(socket: zmq.Socket[bytes], frames: Sequence[Any], *, copy: bool) -> None:
    """Send one message; without a high-water mark this waits for nobody. What is not copied must not change."""
    for frame in frames[:-1]:
        socket.send(frame, SEND_MORE, copy)
    socket.send(frames[-1], 0, copy)


def receive_frames(socket: zmq.Socket[bytes]) -> list[bytes] | None:
    """The next message, or None when there is none now."""
    if not cast("int", socket.getsockopt(EVENTS)) & READABLE:
        return None
    frames = [socket.recv()]
    while socket.getsockopt(RECEIVE_MORE):
        frames.append(socket.recv())
    return frames


def endpoint(socket: zmq.Socket[bytes]) -> str:
    """The address a socket is really bound to."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def close_all(*sockets: zmq.Socket[bytes] | None) -> None:
    """Close what is there, in any state."""
    for socket in sockets:
        if socket is not None:
            socket.close()
