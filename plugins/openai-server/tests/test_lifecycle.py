"""The life of a server process over a fake engine: start, drain, second signal, death of the engine. Real signals."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tenonry.errors import LaunchError
from tenonry_openai_server.serving import lifecycle
from tenonry_openai_server.serving.lifecycle import StopStart, signals
from tenonry_testkit.kernel.forked import ForkedCommand
from tenonry_testkit.roles import interrupted

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("serve_fake.py")
ENDLESS = {"prompt": "x", "max_tokens": 1000, "stream": True}


def run_script(words: list[str]) -> int:
    """Run the script as a fresh interpreter would; it ends by SystemExit."""
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return 0


class ForkedScript(ForkedCommand):
    """The script in a fork of this process, which imports nothing again."""

    beginning = (sys.executable, str(SCRIPT))
    program = staticmethod(run_script)


class Process:
    """The server process, and its output so far: a fresh interpreter where its start or its end is the subject."""

    def __init__(self, timeout_s: float = 10, *events: str, fresh: bool = False) -> None:
        command = [sys.executable, str(SCRIPT), "0", str(timeout_s), *events]
        popen = subprocess.Popen if fresh else ForkedScript
        self.process = popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        (self.url,) = self.wait_for(r"listening on (http://\S+);")

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)

    def wait_for(self, pattern: str) -> tuple[str, ...]:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            match = re.search(pattern, self.output)
            if match:
                return match.groups()
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} was not said:\n{self.output}")

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def ready(self) -> Process:
        self.wait_for("ready at")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=20)

    def post(self, body: dict) -> httpx.Response:
        return httpx.post(self.url + "/v1/completions", json=body, timeout=20)

    def end(self) -> int:
        status = self.process.wait(20)
        self._reader.join(5)
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        self.process.stdout.close()


@pytest.fixture
def start():
    started = []

    def run(*arguments, **options) -> Process:
        started.append(Process(*arguments, **options))
        return started[-1]

    yield run
    for process in started:
        process.close()


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, process: Process, **body) -> None:
        super().__init__(daemon=True)
        self.url, self.body, self.events = process.url, {**ENDLESS, **body}, []
        self.error: Exception | None = None
        self.start()
        while not self.events and self.is_alive():
            time.sleep(0.01)

    def run(self) -> None:
        try:
            with httpx.stream(
                "POST", self.url + "/v1/completions", json=self.body, timeout=20
            ) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            self.error = error

    def end(self) -> list[str]:
        self.join(20)
        assert not self.is_alive()
        assert self.error is None
        return self.events


def test_port_answers_while_the_model_loads(start):
    """Truthful readiness: probes get an answer from the first moment, and it is no."""
    process = start(10, "slow-start")
    process.wait_for("starting")
    for path in ("/health", "/ready"):
        response = process.get(path)
        assert (response.status_code, response.json()) == (503, {"status": "starting"})
    response = process.post({"prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "starting")
    assert process.get("/version").status_code == 200
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    assert "stopped before the model was loaded" in process.output


def test_start_that_fails_says_why_and_ends_with_1(start):
    process = start(10, "bad-start", fresh=True)
    assert process.end() == 1
    assert "1 GiB is needed" in process.output
    assert "Traceback" not in process.output


def test_requests_are_logged_but_probes_that_are_content_are_not(start):
    server = start().ready()
    for path in ("/health", "/ready", "/nowhere", "/version"):
        server.get(path)
    server.wait_for(r"GET /version HTTP/1.1\" 200")
    assert 'GET /nowhere HTTP/1.1" 404' in server.output
    assert "GET /health" not in server.output
    assert "GET /ready" not in server.output


def test_banner_names_url_and_plugins(start):
    process = start().ready()
    assert f"ready at {process.url} · fake · plugins: scheduler fake 1.0" in process.output
    assert process.get("/ready").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_idle_server_ends_with_0(number, start):
    process = start(fresh=True).ready()
    process.signal(number)
    assert process.end() == 0
    assert "engine shut down" in process.output
    assert "Traceback" not in process.output


def test_signals_that_follow_change_nothing_about_the_end(start):
    process = start(fresh=True).ready()
    while process.process.poll() is None:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGINT)
        time.sleep(0.001)
    assert process.end() == 0
    assert "engine shut down" in process.output
    assert "Traceback" not in process.output


def test_signals_that_follow_do_not_disturb_the_end_of_a_start(start):
    process = start(10, "slow-start", fresh=True)
    process.wait_for("starting")
    while process.process.poll() is None:
        process.signal(signal.SIGTERM)
        time.sleep(0.001)
    assert process.end() == 0
    assert process.output.count("stopped before the model was loaded") == 1
    assert "Traceback" not in process.output


def test_nohup_outlives_its_terminal(start):
    before = signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # as `nohup` does it; the server inherits that
    try:
        process = start(fresh=True).ready()
    finally:
        signal.signal(signal.SIGHUP, before)
    process.signal(signal.SIGHUP)
    assert process.get("/ready").status_code == 200
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    assert "stopping" in process.output
    assert "waiting up to" not in process.output  # there is no request


def test_signal_lets_running_requests_finish_and_refuses_new_ones(start):
    """Reliability, fault 16: not ready first, new requests get 503 and Retry-After, running ones finish, exit 0."""
    process = start().ready()
    stream = Stream(process, max_tokens=100)
    stream_of = Stream(process)
    process.signal(signal.SIGTERM)
    process.wait_for("stopping: waiting up to 10 s for")
    assert process.get("/ready").json() == {"status": "draining"}
    assert process.get("/health").status_code == 200
    refused = process.post({"prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert refused.headers["retry-after"]
    *_, last, done = stream.end()
    assert json.loads(last)["choices"][0]["finish_reason"] in {"length", "stop"}
    assert done == "[DONE]"
    assert process.process.poll() is None  # the endless one still runs
    process.signal(signal.SIGTERM)
    *_, last, done = stream_of.end()
    assert (json.loads(last)["choices"][0]["finish_reason"], done) == ("abort", "[DONE]")
    assert process.end() == 0


def test_running_requests_are_aborted_when_time_is_up(start):
    process = start(0.3).ready()
    stream = Stream(process)
    process.signal(signal.SIGTERM)
    *_, last, _ = stream.end()
    assert json.loads(last)["choices"][0]["finish_reason"] == "abort"
    assert process.end() == 0
    assert "aborting 1 requests" in process.output


def test_death_of_the_engine_ends_streams_with_an_error_and_the_process_with_1(start):
    process = start().ready()
    streams = [Stream(process) for _ in range(3)]
    streams.append(Stream(process, prompt="die"))
    for stream in streams:
        *_, error, done = stream.end()
        assert json.loads(error)["error"]["code"] == "engine_dead"
        assert "pid" not in error
        assert done == "[DONE]"
    assert process.end() == 1
    assert process.output.count("the engine failed; stopping") == 1
    assert len(process.lines) < 20  # lines do not grow with the number of streams


def test_request_without_stream_learns_of_the_death_too(start):
    process = start().ready()
    response = process.post({"prompt": "die", "max_tokens": 1000})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert process.end() == 1


class TestAStartOfItsOwnEngine:
    """Their processes import for longer than this one does, so they begin first."""

    @pytest.fixture
    def steps(self, monkeypatch) -> list[str]:
        done: list[str] = []
        engines = SimpleNamespace(shutdown=lambda: done.append("engines end"))
        monkeypatch.setattr(lifecycle, "own_engines", lambda _: done.append("engines") or engines)
        monkeypatch.setattr(lifecycle, "make_front_end", lambda *_: done.append("front end"))
        return done

    def test_http_is_answered_before_the_engines_are_ready(self, steps):
        lifecycle.start_own_engine(None, None, lambda: steps.append("listen"))
        assert steps == ["engines", "listen", "front end"]

    def test_the_engines_end_where_http_cannot_be_answered(self, steps):
        def fail() -> None:
            raise LaunchError("no routes")

        with pytest.raises(LaunchError, match="no routes"):
            lifecycle.start_own_engine(None, None, fail)
        assert steps == ["engines", "engines end"]


class Top:
    """Target of stop signals."""

    is_stopping = False

    def request_stop(self) -> None:
        self.is_stopping = True


@pytest.mark.timeout(20)
@pytest.mark.parametrize("number", range(12))
def test_signal_is_heard_wherever_it_finds_the_start(number):
    """In its midst it must not wait for a lock that the interrupted code holds."""
    top = Top()

    def main() -> None:
        start.is_underway = True
        start.is_underway = False
        for _ in range(12):
            pass  # whatever comes next

    with signals(top, (signal.SIGUSR2,)) as start, contextlib.suppress(StopStart):
        interrupted(main, lambda: signal.raise_signal(signal.SIGUSR2), number)
    signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert top.is_stopping


class Midst:
    """A start that a signal finds in the midst of `module`, which takes a lock there. `is_interrupted`: at its end."""

    CODE = "def midst(interrupt, lock):\n    lock.acquire()\n    interrupt()\n    lock.release()\n"

    def __init__(self, module: str) -> None:
        names: dict[str, Any] = {"__name__": module}
        exec(self.CODE, names)
        self.lock = threading.Lock()
        self._midst = names["midst"]

    def run(self, start: lifecycle.Start, interrupt: Callable[[], object]) -> None:
        start.is_underway = True
        self._midst(interrupt, self.lock)
        time.sleep(30)


def stop_start(top: Top, main: Callable[[lifecycle.Start], object]) -> None:
    """Run `main`, which a signal is to interrupt."""
    try:
        with signals(top, (signal.SIGUSR2,)) as start:
            with pytest.raises(StopStart):
                main(start)
            assert not start.is_underway
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert top.is_stopping


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR2)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("module", sorted(lifecycle.LOCKING))
def test_no_lock_is_left_behind_by_a_signal(module):
    """Else other threads wait for it, and the server never ends."""
    midst = Midst(module)
    stop_start(Top(), lambda start: midst.run(start, interrupt))
    assert not midst.lock.locked()


@pytest.mark.timeout(20)
def test_code_that_waits_for_long_is_interrupted_all_the_same(monkeypatch):
    monkeypatch.setattr(lifecycle, "MAX_DEFERRALS", 3)

    def main(start: lifecycle.Start) -> None:
        start.is_underway = True
        ident = threading.get_ident()
        threading.Timer(0.1, signal.pthread_kill, (ident, signal.SIGUSR2)).start()
        threading.Event().wait(30)

    stop_start(Top(), main)


@pytest.mark.timeout(20)
def test_a_stop_that_python_drops_is_repeated():
    """Exceptions in callbacks of weak references, such as those of the import system, or in finalizers."""

    class Dropping:
        def __del__(self) -> None:
            interrupt()

    def main(start: lifecycle.Start) -> None:
        start.is_underway = True
        Dropping()
        time.sleep(30)

    hook = sys.unraisablehook
    stop_start(Top(), main)
    assert sys.unraisablehook is hook


@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_start_that_fails_since_it_was_interrupted_is_no_error(is_stopping):
    """Such as by a lock that it no longer holds."""
    state = SimpleNamespace(config=None)
    http: Any = SimpleNamespace(is_stopping=False, state=state, close=lambda: None)

    def make(_config: object) -> Any:
        http.is_stopping = is_stopping
        raise RuntimeError("release unlocked lock")

    if is_stopping:
        assert lifecycle.serve_until_stopped(http, lifecycle.Start(), make) == 0
    else:
        with pytest.raises(RuntimeError, match="release unlocked lock"):
            lifecycle.serve_until_stopped(http, lifecycle.Start(), make)
