"""Clients of several API servers of one instance, and their requests. Test process."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading

import psutil
from server_process import Server, eventually

SLOW = ("--worker-option", "step_ms=20")


class Stream(threading.Thread):
    """A client on a connection of its own, so that the test can find the server that answers it."""

    def __init__(self, server: Server, max_tokens: int = 400, **extra: object) -> None:
        super().__init__(daemon=True)
        host, port = server.url.removeprefix("http://").split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self.body = {
            "prompt": "x",
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            **extra,
        }
        self.headers = {"content-type": "application/json"}
        self.events: list[dict] = []
        self.connection.connect()
        self.port = self.connection.sock.getsockname()[1]

    def begin(self, **headers: str) -> Stream:
        self.headers |= headers
        self.start()
        eventually(lambda: self.events or not self.is_alive())
        return self

    def run(self) -> None:
        with (
            contextlib.closing(self.connection),
            contextlib.suppress(OSError, http.client.HTTPException),
        ):
            self.connection.request("POST", "/v1/completions", json.dumps(self.body), self.headers)
            for line in self.connection.getresponse():
                data = line.decode().removeprefix("data: ").strip()
                if data and data != "[DONE]":
                    self.events.append(json.loads(data))

    def server_of(self, pids: dict[str, int]) -> str:
        """The name of the process at the other end of the connection."""
        for name, pid in pids.items():
            if name.startswith("api-server"):
                for connection in psutil.Process(pid).net_connections("tcp"):
                    if connection.raddr and connection.raddr.port == self.port:
                        return name
        return ""

    def end(self) -> str:
        """Read to the end; return its finish reason, the code of its error, or "broken"."""
        self.join(100)  # for hangs: the machine may be busy
        assert not self.is_alive()
        last = self.events[-1] if self.events else {"choices": [{"finish_reason": None}]}
        return (
            last["error"]["code"]
            if "error" in last
            else last["choices"][0]["finish_reason"] or "broken"
        )


def on_each_server(
    server: Server, count: int = 2, max_tokens: int = 250, **headers: str
) -> dict[str, list[Stream]]:
    """Start streams until at least `count` run on each API server."""
    streams: dict[str, list[Stream]] = {"api-server 1": [], "api-server 2": []}
    pids = server.pids()
    for _ in range(60):
        stream = Stream(server, max_tokens)
        eventually(lambda: stream.server_of(pids))  # noqa: B023 - before a short stream may have ended
        streams[stream.server_of(pids)].append(stream.begin(**headers))
        if all(len(some) >= count for some in streams.values()):
            return streams
    raise AssertionError({name: len(some) for name, some in streams.items()})


def texts(streams: dict[str, list[Stream]]) -> set[str]:
    """Texts received by clients of both servers."""
    return {
        "".join(event["choices"][0]["text"] for event in stream.events if event["choices"])
        for some in streams.values()
        for stream in some
    }


def total(server: Server, name: str, **labels: str) -> float:
    """The sum of a metric over all engines."""
    values = re.findall(rf"^tenonry:{name}{{(.*)}} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for found, value in values if all(label in found for label in wanted))


def ask(server: Server) -> int:
    """Return the HTTP status of a short request."""
    stream = Stream(server, 2, stream=False)
    stream.connection.request("POST", "/v1/completions", json.dumps(stream.body), stream.headers)
    status = stream.connection.getresponse().status
    stream.connection.close()
    return status
