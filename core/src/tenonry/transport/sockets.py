"""Addresses and sockets between the processes of an instance. Any process.

On one node sockets are files in a private folder of the run; across nodes they are TCP with CURVE and an explicit
address. Ports are bound and read back, never probed.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Sequence
from socket import AI_NUMERICHOST, getaddrinfo
from typing import Any, Literal, cast

import zmq

from tenonry.errors import ConfigError
from tenonry.transport.keys import CurveKeys

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]
IDENTITY_BYTES = 2
PORT_BYTES = 2 * IDENTITY_BYTES
TCP = "tcp://"
# As plain integers: pyzmq's flags are enums, and one `|` of them costs as much as sending a frame.
SEND_MORE = int(zmq.SNDMORE)
RECEIVE_MORE = int(zmq.RCVMORE)
EVENTS = int(zmq.EVENTS)
READABLE = int(zmq.POLLIN)


def tcp_address(host: str, port: int) -> str:
    """Return an address across nodes; port 0 is any free one. Raises ConfigError for a wildcard host."""
    return f"{TCP}{_explicit(host)}:{port}"


def _explicit(host: str) -> str:
    """Return the host as written in an address. Raises ConfigError for a wildcard host."""
    bare = host.strip().strip("[]")
    everywhere = bare in {"", "*"}
    with contextlib.suppress(OSError):  # a name; but "0" and "0.0" are old spellings of 0.0.0.0
        found = getaddrinfo(bare, None, flags=AI_NUMERICHOST)
        everywhere |= any(ipaddress.ip_address(address[0]).is_unspecified for *_, address in found)
    if everywhere:
        raise ConfigError(
            f"a socket for other nodes needs an explicit address of this one, not '{host}'"
        )
    return f"[{bare}]" if ":" in bare else bare


def engine_identity(engine_index: int) -> bytes:
    """The ZMQ identity of an engine: its index as two bytes, little endian."""
    return engine_index.to_bytes(IDENTITY_BYTES, "little")


def engine_index_of(identity: bytes) -> int:
    """Engine index of an identity."""
    return int.from_bytes(identity, "little")


def port_identity(engine_index: int, epoch: int) -> bytes:
    """ZMQ identity of an engine's sockets to front ends: its index and the low bytes of its epoch, so that the next
    engine of this index can connect before it leaves.
    """
    return engine_identity(engine_index) + engine_identity(epoch % (1 << 8 * IDENTITY_BYTES))


def make_socket(
    context: Context,
    kind: int,
    address: str,
    *,
    bind: bool = False,
    identity: bytes = b"",
    linger_ms: int = 0,
    curve: CurveKeys | None = None,
    keep: Literal["all", "connected", "latest"] = "all",
) -> Socket:
    """Create a socket without high-water marks, bound or connected to `address`. Raises ConfigError for TCP without
    keys, or bound to every interface.

    `keep`: "connected" keeps nothing for a missing peer, and sending raises zmq.Again instead; "latest" keeps only the
    last message for the reader.
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
    socket.conflate = keep == "latest"
    if identity:
        socket.setsockopt(zmq.IDENTITY, identity)
    if kind == zmq.ROUTER:
        socket.router_mandatory = True
        socket.router_handover = True  # a peer that reconnects replaces its old connection
    if curve is not None and is_tcp:
        _secure(socket, curve, server=bind)
    try:
        (socket.bind if bind else socket.connect)(address)
    except zmq.ZMQError as error:
        socket.close(0)
        reason = error.strerror
        if error.errno == zmq.EADDRINUSE:
            reason += "; stop the process that has it, or choose another port"
        raise ConfigError(f"{address}: {reason}") from error
    return socket


def _secure(socket: Socket, curve: CurveKeys, *, server: bool) -> None:
    if server:
        socket.curve_server = True
        socket.curve_publickey = curve.server_public
        socket.curve_secretkey = curve.server_secret
    else:
        socket.curve_serverkey = curve.server_public
        socket.curve_publickey = curve.client_public
        socket.curve_secretkey = curve.client_secret


def send_frames(socket: Socket, frames: Sequence[Any], *, copy: bool) -> None:
    """Send one message; without a high-water mark this never blocks. Frames that are not copied must not change."""
    for frame in frames[:-1]:
        socket.send(frame, SEND_MORE, copy)
    socket.send(frames[-1], 0, copy)


def receive_frames(socket: Socket) -> list[bytes] | None:
    """Return the next message, or None without one."""
    if not cast("int", socket.getsockopt(EVENTS)) & READABLE:
        return None
    frames = [socket.recv()]
    while socket.getsockopt(RECEIVE_MORE):
        frames.append(socket.recv())
    return frames


def endpoint(socket: Socket) -> str:
    """Address of a bound socket, with its assigned port."""
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def close_all(*sockets: Socket | None) -> None:
    """Close the existing sockets, in any state."""
    for socket in sockets:
        if socket is not None:
            socket.close()
