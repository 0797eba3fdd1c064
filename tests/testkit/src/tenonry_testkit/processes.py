"""Real processes for integration tests: run the command line, start a server, find and kill their children.

Everything has a deadline and is killed with its whole tree at the end. Test process.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

BELOW_THOSE_OF_LINUX = 32_000  # Linux assigns ports from 32768 on by default
COMMAND = (sys.executable, "-m", "tenonry")
HOST = r"(?:\[[0-9A-Fa-f:.]+\]|[\w-]+(?:\.[\w-]+)*)"
# Group 1 is the address without surrounding punctuation; the line must be complete: a truncated address may be valid.
URL = rf"(https?://{HOST}(?::\d+)?(?:/[\w.~%/-]*[\w~])?)[^\n]*\n"


@contextlib.contextmanager
def children_killed(patience_s: float = 20.0) -> Iterator[None]:
    """Kill, at the end, every process started below this one in the block."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    try:
        yield
    finally:
        started = [
            process
            for process in psutil.Process().children(recursive=True)
            if process.pid not in before
        ]
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(started, patience_s)


class Completed(NamedTuple):
    """A finished command: its exit code (negative: the signal), and its output."""

    returncode: int
    stdout: str
    stderr: str

    def check(self) -> Completed:
        """Return this, if it succeeded; raises AssertionError with its output otherwise."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.stdout}\n{self.stderr}"
        return self


def run_cli(
    *arguments: object,
    timeout: float = 25.0,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdin: str = "",
    command: tuple[str, ...] = COMMAND,
) -> Completed:
    """Run `tenonry WORDS` to its end. Raises AssertionError with its output after `timeout` seconds.

    `env` is added to the environment; None as a value removes a variable.
    """
    with Running(*arguments, env=env, cwd=cwd, stdin=stdin, command=command) as process:
        process.wait(timeout)
        return Completed(process.returncode or 0, process.stdout, process.stderr)


class Running:
    """A running command. A context manager: on leaving, it and all its descendants are killed."""

    def __init__(
        self,
        *arguments: object,
        env: Mapping[str, str | None] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: str = "",
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self.arguments = tuple(map(str, arguments))
        merged = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        self._folder = tempfile.TemporaryDirectory(prefix="testkit-")
        folder = Path(self._folder.name)
        self._out = folder / "stdout"
        self._err = folder / "stderr"
        (folder / "stdin").write_text(stdin, "utf-8")
        with (
            self._out.open("wb") as out,
            self._err.open("wb") as err,
            (folder / "stdin").open("rb") as given,
        ):
            self.process = subprocess.Popen(
                [*command, *self.arguments],
                stdin=given,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env={key: value for key, value in merged.items() if value is not None},
                start_new_session=True,
            )

    # ------------------------------------------------------------------ looking
    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs."""
        return self.process.poll()

    @property
    def stdout(self) -> str:
        """Output so far."""
        return self._out.read_text("utf-8", "replace") if self._out.exists() else ""

    @property
    def stderr(self) -> str:
        """Errors so far."""
        return self._err.read_text("utf-8", "replace") if self._err.exists() else ""

    @property
    def output(self) -> str:
        """Standard output and errors, for messages."""
        return f"--- stdout of {' '.join(self.arguments)}\n{self.stdout}\n--- stderr\n{self.stderr}"

    def descendants(self) -> list[psutil.Process]:
        """All descendant processes."""
        return descendants(self.pid)

    # ------------------------------------------------------------------ waiting
    def wait(self, timeout: float = 25.0) -> int:
        """Return the exit code. Raises AssertionError with its output after `timeout` seconds."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s\n{self.output}") from None

    def wait_for(self, what: Callable[[], object], timeout: float = 25.0, name: str = "") -> object:
        """Return the first true value of `what()`. Raises AssertionError with the output at the process's end or the
        timeout.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = what()
            if found:
                return found
            missing = f"waiting for {name or what}"
            assert self.returncode is None, (
                f"ended with {self.returncode} while {missing}\n{self.output}"
            )
            assert time.monotonic() < deadline, f"{timeout} s passed while {missing}\n{self.output}"
            time.sleep(0.02)

    def wait_for_output(self, pattern: str, timeout: float = 25.0) -> re.Match[str]:
        """Return the first match of `pattern` in its output."""
        found = self.wait_for(
            lambda: re.search(pattern, self.stdout + self.stderr), timeout, f"output {pattern!r}"
        )
        assert isinstance(found, re.Match)
        return found

    # ------------------------------------------------------------------ ending
    def send_signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the process, not to its children."""
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, timeout: float = 25.0) -> int:
        """Send a signal and wait; returns the exit code."""
        if self.returncode is None:
            self.send_signal(number)
        return self.wait(timeout)

    def kill(self) -> None:
        """Kill it and all its descendants together."""
        victims: list[Any] = [*self.descendants(), self.process]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(
                self.pid, signal.SIGKILL
            )  # including those whose parent has died: they are in its session
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                victim.kill()
        self.process.wait()
        psutil.wait_procs(
            [victim for victim in victims if isinstance(victim, psutil.Process)], timeout=5
        )

    def close(self) -> None:
        """Kill all remaining processes and remove the captured output."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Server(Running):
    """A server that prints its address. `url` is without a slash at the end, once `wait_ready` has returned."""

    url = ""

    def wait_ready(
        self, ready_path: str = "/ready", timeout: float = 25.0, url_pattern: str = URL
    ) -> Server:
        """Wait until it has printed its address and responds to `ready_path` with 200.

        The address is group 1 of the first match of `url_pattern`; by default the first URL in a complete line, with
        any surrounding text.
        """
        deadline = time.monotonic() + timeout
        self.url = self.wait_for_output(url_pattern, timeout).group(1).rstrip("/")
        self.wait_for(
            lambda: self.status_of(ready_path) == 200,
            deadline - time.monotonic(),
            f"{ready_path} to be 200",
        )
        return self

    def status_of(self, path: str, timeout: float = 5.0) -> int:
        """The HTTP status of a GET; 0 while there is no answer."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0


@contextlib.contextmanager
def start_server(
    *arguments: object,
    timeout: float = 25.0,
    ready_path: str = "/ready",
    url_pattern: str = URL,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    command: tuple[str, ...] = COMMAND,
) -> Iterator[Server]:
    """Yield `tenonry WORDS` as a ready server; killed with its whole tree on leaving."""
    server = Server(*arguments, env=env, cwd=cwd, command=command)
    try:
        yield server.wait_ready(ready_path, timeout, url_pattern)
    finally:
        server.close()


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, outside the range assigned by the system for port 0."""
    while True:
        port = BELOW_THOSE_OF_LINUX - secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """All descendant processes of `pid`, by default of this one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
