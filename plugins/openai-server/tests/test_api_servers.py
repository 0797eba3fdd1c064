"""The supervisor of several API servers: a signal at any of its lines stops everything once, and leaves nothing."""

from __future__ import annotations

import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tenonry.config import EngineConfig
from tenonry_openai_server.serving import api_servers, lifecycle
from tenonry_openai_server.serving.api_servers import serve_many
from tenonry_openai_server.settings import ServerConfig
from tenonry_testkit.tiers import nightly_unless

FILES = {api_servers.__file__, lifecycle.__file__}


class Killed(BaseException):
    """The default action of a signal."""


class Processes:
    """Servers that end as soon as they are asked to. `running`: by name."""

    def __init__(self) -> None:
        self.running: dict[str, Any] = {}
        self.is_stopped = False

    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        self._callback = callback

    def stop_some(self, names: list[str]) -> None:
        for name in names:
            self.running.pop(name, None)

    def start(self, name: str, *_: Any, **__: Any) -> Any:
        process = SimpleNamespace(send_signal=lambda number: self.end(name, -number))
        self.running[name] = SimpleNamespace(name=name, pid=1, exit_code=None, process=process)
        return self.running[name]

    def end(self, name: str, code: int = 0) -> None:
        self.running.pop(name).exit_code = code
        self._callback(name, 1, code)

    def stop(self) -> None:
        self.is_stopped = True


class Hub:
    """Engines that start at once. `stops`: whether each stop aborts."""

    dead = None
    info = None

    def __init__(self, config: EngineConfig, num_servers: int, **callbacks: Any) -> None:
        self.config = config
        self.num_servers = num_servers
        self.callbacks = callbacks
        self.stops: list[bool] = []
        self.is_shut_down = False

    def attachment(self, index: int) -> dict[str, int]:
        return {"index": index}

    def start(self) -> None:
        """They are ready."""

    def listen(self, _loop: object) -> None:
        for index in range(1, self.num_servers + 1):
            self.callbacks["on_connected"](index)

    def stop_servers(self, *, abort: bool) -> set[int]:
        self.stops.append(abort)
        return set()

    def detach(self, _index: int) -> str:
        return ""

    last_error = detach

    def shutdown(self) -> None:
        self.is_shut_down = True


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """What `serve_many` makes: `hubs`, `processes`. Handlers of signals are restored."""
    made = SimpleNamespace(hubs=[], processes=[], folder=tmp_path)

    def keep(kind: Any, into: list[Any]) -> Callable[..., Any]:
        def make(*args: Any, **fields: Any) -> Any:
            into.append(kind(*args, **fields))
            return into[-1]

        return make

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(api_servers, "Hub", keep(Hub, made.hubs))
    monkeypatch.setattr(api_servers, "Supervisor", keep(Processes, made.processes))
    monkeypatch.setattr(api_servers, "POLL_S", 0.002)
    for name in ("announce", "set_title", "set_up_logging"):
        monkeypatch.setattr(api_servers, name, lambda *_: None)
    numbers = (*lifecycle.SIGNALS, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def run(interrupt: Callable[[], None], number: int) -> int:
    """Serve, with an interruption before line `number` of `FILES`."""
    num_lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num_lines
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            num_lines += 1
            if num_lines == number + 1:
                interrupt()
        return trace

    config = EngineConfig(model="fake", shutdown_timeout=5)
    settings = ServerConfig(api_server_count=2)
    before = sys.gettrace()
    with socket.socket() as sock:
        sys.settrace(trace)
        try:
            return serve_many(config, settings, sock)
        finally:
            sys.settrace(before)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", nightly_unless(lambda number: number % 10 == 0, range(150)))
def test_a_signal_at_any_line_stops_everything_once(parts, number):
    left: list[Path] = []

    def die(*_: Any) -> None:
        left.extend(parts.folder.iterdir())  # nothing else runs in a process that is killed
        raise Killed

    signal.signal(signal.SIGTERM, die)
    try:
        assert run(lambda: signal.raise_signal(signal.SIGTERM), number) == 0
    except Killed:
        assert left == []
        assert not any(each.running for each in parts.processes)
        return
    assert [each.is_stopped for each in parts.processes] == [True]
    assert all(hub.is_shut_down for hub in parts.hubs)
    assert not any(any(hub.stops) for hub in parts.hubs), "one signal aborted what runs"
    assert list(parts.folder.iterdir()) == []
