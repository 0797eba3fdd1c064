"""A `tenonry serve` process and its clients, for the integration tests. Test process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import openai
import psutil

from tenonry_testkit.kernel.forked import ForkedCommand

# Torch would create it in TMPDIR, where tests check what a server leaves behind.
TORCH_CACHE = {"TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "torchinductor")}


def patience(seconds: float) -> float:
    """Time limit for work of less than `seconds` with a core per process; it scales with the load."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Server:
    """A `tenonry serve` process on a free port, and its output."""

    popen: type[subprocess.Popen[str]] = subprocess.Popen

    def __init__(self, model: Path, *arguments: str, **environment: str) -> None:
        command = [*self.words(model), *arguments]
        self.process = self.popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**TORCH_CACHE, **os.environ, **environment}, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""
        self.headers: dict[str, str] = {}  # of `get`
        self._clients: list[openai.OpenAI] = []

    @staticmethod
    def words(model: Path) -> list[str]:
        """The command that serves the model under the name `tiny`."""
        command = [sys.executable, "-m", "tenonry", "serve", str(model), "--port", "0"]
        return [*command, "--served-model-name", "tiny", "--load-format", "dummy"]

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def ready(self) -> Server:
        self.url = self.wait_for(r"ready at (http://\S+)")
        return self

    def wait_for(self, pattern: str) -> str:
        """Group of the pattern in the process's output, within two minutes."""
        for _ in range(2400):
            match = re.search(pattern, self.output)
            if match:
                return match[1]
            if self.process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.05)
        raise AssertionError(
            f"{pattern!r} was not said; exit status {self.process.poll()}\n{self.output}"
        )

    def client(self, api_key: str = "none") -> openai.OpenAI:
        made = openai.OpenAI(base_url=self.url + "/v1", api_key=api_key, max_retries=0, timeout=30)
        self._clients.append(made)
        return made

    def get(self, path: str) -> tuple[int, str]:
        try:
            request = urllib.request.Request(self.url + path, headers=self.headers)
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        match = re.search(rf"^{name} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        return float(match[1]) if match else 0.0

    def engine_pid(self) -> int:
        (engine,) = [pid for title, pid in self.pids().items() if title.startswith("engine")]
        return engine

    def pids(self) -> dict[str, int]:
        """Processes below the top one, by their titles: "engine 0", "api-server 1", …"""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                title = " ".join(child.cmdline()).rstrip("\0 ")
                if title.startswith("tenonry: "):
                    found[title.removeprefix("tenonry: ")] = child.pid
        return found

    def signal_all(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to every process of the group, as systemd and a terminal do."""
        os.killpg(self.process.pid, number)

    def end(self) -> int:
        status = self.process.wait(patience(30))
        self._reader.join(5)
        return status

    def close(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            for _ in range(2):  # the second signal does not wait for what runs
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.3)
            try:
                self.process.wait(patience(15))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


class ForkedServer(Server):
    """The same as a fork of this process, for tests of its answers: nothing is imported again."""

    popen = ForkedCommand

    def __init__(self, model: Path, *arguments: str, **environment: str) -> None:
        import_server()
        if "--worker" not in arguments or arguments[arguments.index("--worker") + 1] == "torch":
            import_worker()
        super().__init__(model, *arguments, **environment)


def import_server() -> None:
    """Import the modules that forks of this process need to serve."""
    import tenonry_openai_server.app
    import tenonry_openai_server.serving.lifecycle  # noqa: F401


def import_worker() -> None:
    """Import the modules that forks of this process need to compute."""
    import transformers.modeling_utils  # noqa: F401

    import tenonry_worker_torch.loader
    import tenonry_worker_torch.start_runner  # noqa: F401


class Stream(threading.Thread):
    """A client in a thread that reads a stream to its end; `seen` is set with the first chunk."""

    def __init__(self, server: Server, **extra: object) -> None:
        super().__init__(daemon=True)
        self.server, self.extra, self.chunks = server, extra, []
        self.seen = threading.Event()
        self.error: Exception | None = None
        self.start()
        assert self.seen.wait(20)

    def run(self) -> None:
        try:
            with self.server.client() as client:
                body = {"ignore_eos": True, **self.extra}
                stream = client.completions.create(
                    model="tiny", prompt="x", max_tokens=400, stream=True, extra_body=body
                )
                for chunk in stream:
                    self.chunks.append(chunk)
                    self.seen.set()
        except openai.APIError as error:
            self.error = error
        finally:
            self.seen.set()

    @property
    def text(self) -> str:
        return "".join(chunk.choices[0].text for chunk in self.chunks if chunk.choices)

    def end(self) -> str | None:
        self.join(30)
        assert not self.is_alive()
        return self.chunks[-1].choices[0].finish_reason


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(20)
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
