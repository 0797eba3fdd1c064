"""Binds the listening socket before anything slow starts, or names the process that uses it. Light; front end."""

from __future__ import annotations

import contextlib
import errno
import socket
import stat
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry_openai_server.settings import ServerConfig


def listen(settings: ServerConfig) -> tuple[socket.socket, ServerConfig]:
    """A socket that already listens, and the settings with the port it got. Raises ConfigError.

    It listens immediately: with SO_REUSEADDR two sockets may be bound to one port as long as neither listens.
    """
    if settings.uds:
        return _listen_unix(settings.uds, settings.backlog), settings
    sock = _listen_tcp(settings.host, settings.port, settings.backlog)
    return sock, settings.replaced(port=sock.getsockname()[1])


def _listen_tcp(host: str, port: int, backlog: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error}") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(_why(error, host, port)) from None
    sock.setblocking(False)
    return sock


def _why(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use{owner_of(port)}; stop that process or choose another --port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights; choose a --port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine; 127.0.0.1 and 0.0.0.0 always are"
    return f"cannot listen on {host}, port {port}: {error.strerror}"


def owner_of(port: int) -> str:
    """Part of a message that names the process listening on a TCP port; empty if unknown."""
    import psutil

    try:
        pids = {
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == port
        }
    except (psutil.Error, OSError):
        return ""
    for pid in sorted(pid for pid in pids if pid):
        with contextlib.suppress(psutil.Error):
            return f" by process {pid} ({psutil.Process(pid).name()})"
    return ""


def _listen_unix(path: str, backlog: int) -> socket.socket:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on the Unix socket {path}: {error.strerror or error}"
        ) from None
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket without a listener. Raises ConfigError for one in use, and for a file that is no socket."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return  # nothing there; if the folder is missing too, bind reports it
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"--uds {path} exists and is no socket; remove it or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:
            raise ConfigError(f"--uds {path} cannot be used: {error.strerror or error}") from None
    raise ConfigError(f"the Unix socket {path} is in use by another server; choose another --uds")
