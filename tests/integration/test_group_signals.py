"""Signals to the whole group of processes, as systemd, a terminal and `docker stop` send them: the top process decides,
and everything ends in order, in every layout and at any moment (reliability, fault 16).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from server_process import ForkedServer, Server, Stream, eventually

pytestmark = pytest.mark.timeout(120)  # as in test_openai_server
LAYOUTS = {
    "one engine": (),
    "two ranks": ("--executor", "mp", "--tensor-parallel-size", "2"),
    "two engines": ("--data-parallel-size", "2"),
    "two servers": ("--api-server-count", "2"),
}
COMPLAINT = re.compile(r"^(?:[WEC] \d\d:|Traceback|tenonry: error)", re.MULTILINE)
Start = Callable[..., Server]


@pytest.fixture
def start(text_model: Path) -> Iterator[Start]:
    """A function that starts servers; when they have ended, no process and no socket file may exist.

    Fresh interpreters where the start or the end of one is the subject, and forks of this process elsewhere.
    """
    servers: list[Server] = []
    seen: list[psutil.Process] = []
    with tempfile.TemporaryDirectory(
        prefix="t"
    ) as folder:  # pytest's would be too long for the names of sockets

        def run(*arguments: str, worker: str = "null", fresh: bool = False) -> Server:
            made = Server if fresh else ForkedServer
            words = ("--worker", worker, "--device", "cpu", *arguments)
            servers.append(made(text_model, *words, TMPDIR=folder))
            send = servers[-1].signal_all

            def send_and_remember(number: int = signal.SIGTERM) -> None:
                seen.extend(psutil.Process(servers[-1].process.pid).children(recursive=True))
                send(number)

            servers[-1].signal_all = send_and_remember  # type: ignore[method-assign]
            return servers[-1]

        yield run
        for server in servers:
            server.close()
        eventually(lambda: not any(is_running(process) for process in seen))
        assert [path.name for path in Path(folder).iterdir() if not is_trial(path)] == []


def is_trial(path: Path) -> bool:
    """Return True for a file with which Python tested the folder (`tempfile.gettempdir`) in a process that was killed
    just then.
    """
    return path.is_file() and path.read_bytes() in {b"", b"blat"}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends_in_order(server: Server) -> None:
    status = server.end()
    assert (status, COMPLAINT.findall(server.output)) == (0, []), server.output


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_running_requests_are_finished(start, layout):
    fresh = layout in {"two ranks", "two servers"}
    server = start("--worker-option", "step_ms=3", *LAYOUTS[layout], fresh=fresh).ready()
    streams = [Stream(server) for _ in range(3)]
    server.signal_all()
    assert [stream.end() for stream in streams] == ["length"] * 3
    ends_in_order(server)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("layout", ["one engine", "two engines", "two servers"])
def test_an_idle_server_ends_at_once(start, layout):
    """With two ranks: `test_an_engine_alone_takes_no_notice` ends so."""
    server = start(*LAYOUTS[layout], fresh=layout in {"one engine", "two engines"}).ready()
    server.signal_all()
    ends_in_order(server)


@pytest.mark.parametrize(
    ("layout", "moment"),
    [
        ("one engine", r"(listening) on"),
        ("two servers", r"(listening) on"),
        ("two ranks", r"(\[engine 0\])"),
        pytest.param("two engines", r"(\[engine 1\])", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly_after(1)
def test_a_start_is_given_up(start, layout, moment):
    """A signal during the start ends it, even before its children have read their payload."""
    server = start(*LAYOUTS[layout], worker="torch", fresh=True)
    server.wait_for(moment)
    server.signal_all()
    ends_in_order(server)


def test_in_the_first_instants_there_is_nothing_to_stop(start):
    """A signal while Python itself starts ends the process; a later one starts the orderly end."""
    for delay in (0.0, 0.3, 0.6):
        server = start(fresh=True)
        time.sleep(delay)
        server.signal_all()
        assert server.end() in {0, -signal.SIGTERM}
        assert COMPLAINT.findall(server.output) == []


@pytest.mark.parametrize("layout", ["two ranks", "two servers"])
@pytest.mark.nightly_after(1)
def test_the_second_one_aborts(start, layout):
    server = start("--worker-option", "step_ms=20", *LAYOUTS[layout]).ready()
    stream = Stream(server)
    server.signal_all()
    server.wait_for("(stopping: waiting up to)")
    server.signal_all()
    assert stream.end() == "abort"
    assert server.end() == 0
    assert "died" not in server.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.nightly_after(1)
def test_a_terminal_speaks_to_the_whole_group_too(start, number):
    """Ctrl-C, and the end of the terminal itself, which shell and system may both signal."""
    server = start("--worker-option", "step_ms=3").ready()
    stream = Stream(server)
    server.signal_all(number)
    server.wait_for("(stopping: waiting up to)")
    server.signal_all(signal.SIGHUP)
    assert stream.end() == "length"
    ends_in_order(server)


def test_an_engine_alone_takes_no_notice(start):
    """A signal to an engine or a worker alone is ignored; the server continues."""
    server = start(*LAYOUTS["two ranks"]).ready()
    before = server.pids()
    for pid in before.values():
        os.kill(pid, signal.SIGTERM)
    assert Stream(server).end() == "length"
    assert server.pids() == before
    server.signal_all()
    ends_in_order(server)


PROGRAM = textwrap.dedent(
    """
    import asyncio, signal, sys
    from tenonry import AsyncLLM, EngineConfig, SamplingParams

    async def main():
        told = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
        params = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
        stream = engine.generate([1, 2, 3], params, "r")
        await anext(stream)
        print("begun", flush=True)
        await told.wait()
        print([output async for output in stream][-1].outputs[0].finish_reason, flush=True)

    engine = AsyncLLM(EngineConfig(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, data_parallel_size=2,
        worker={"name": "null", "options": {"step_ms": 5}},
    ))
    asyncio.run(main())
    engine.shutdown()
    """
)


def test_a_program_of_ones_own_decides_for_its_engines(text_model):
    command = [sys.executable, "-c", PROGRAM, str(text_model)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        os.killpg(program.pid, signal.SIGTERM)
        printed, log = program.communicate(timeout=30)
    assert (printed, program.returncode, COMPLAINT.findall(log)) == ("length\n", 0, []), log
