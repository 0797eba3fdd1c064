"""`tenonry plugins dev`: rules by budget, verdicts in one line, and what a server is asked for."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, TCPServer
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tenonry.cli import main
from tenonry.errors import ConfigError, LaunchError
from tenonry_author_tools import dev
from tenonry_author_tools.budget import Budget, Ran, Record, read_record
from tenonry_author_tools.classes import plugin_classes
from tenonry_author_tools.dev import DevLoop, check_used, class_headers, names_class_of, saves, swap
from tenonry_author_tools.running_server import NUM_PROBES, RunningServer
from tenonry_author_tools.suite_process import SuiteProcess

GOOD = """
from tenonry.interfaces.stat_logger import StatLogger
class Mine(StatLogger):
    def record(self, record): pass
class Helper: pass
"""


class Handler(BaseHTTPRequestHandler):
    """A server that streams two tokens, and notes what it is asked for."""

    def do_GET(self) -> None:
        self._answer({"/v1/models": {"data": [{"id": "demo"}]}}.get(self.path, SETTINGS))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body, self.headers["authorization"]))  # type: ignore[attr-defined]
        if self.path == "/replace" and self.headers["authorization"] != "Bearer key":
            self._answer({"error": {"message": "no such plugin"}}, 409)
        elif self.path == "/replace":
            self._answer({})
        else:
            self._answer(b'data: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n')

    def _answer(self, value: Any, status: int = 200) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


SETTINGS = {"settings": {"scheduler": "mine.py:Mine"}}


@pytest.fixture
def http() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def url_of(http: Any) -> str:
    return f"http://127.0.0.1:{http.server_port}"


def test_engines_are_replaced_between_probes(http: Any):
    line = swap(RunningServer(url_of(http), "key"))
    paths = [path for path, _, _ in http.asked]
    assert paths == ["/v1/completions"] * NUM_PROBES + ["/replace"] + paths[:NUM_PROBES]
    assert http.asked[NUM_PROBES][1] == {"changes": {}}
    assert http.asked[0][1]["model"] == "demo"
    assert "TTFT" in line
    assert "ITL" in line


def test_a_refusal_of_the_server_is_the_error(http: Any):
    with pytest.raises(LaunchError, match="/replace answered 409: no such plugin"):
        RunningServer(url_of(http), "other").replace()
    with pytest.raises(LaunchError, match="cannot be reached"):
        RunningServer("http://127.0.0.1:1").settings()
    with pytest.raises(ConfigError, match="must begin with http"):
        RunningServer("file:///etc/passwd")


def test_without_a_key_none_is_sent(http: Any):
    with pytest.raises(LaunchError, match="answered 409"):
        RunningServer(url_of(http)).replace()
    assert [key for _, _, key in http.asked] == [None]


@pytest.mark.integration
def test_a_module_that_hangs_is_named(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(dev, "IMPORT_S", 0.1)
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    with closing(DevLoop(file, "", 60.0, tmp_path, None)) as loop:
        assert not loop.round()
    assert (
        "mine.py did not finish its import within 0.1 s; wait for nothing"
        in capsys.readouterr().out
    )


def test_the_server_must_use_the_file(http: Any):
    check_used(RunningServer(url_of(http)), Path("/somewhere/mine.py"))
    with pytest.raises(
        ConfigError,
        match=r"does not use other\.py: start it with the class and the flag of its kind",
    ):
        check_used(RunningServer(url_of(http)), Path("other.py"))


@pytest.mark.parametrize(("text", "file", "is_used"), [
    ("mine.py:Mine", "/somewhere/mine.py", True), ("determine.py:Mine", "mine.py", False),
    ("plugins/mine.py:Mine", "mine.py", True), ("/a/mine.py:Mine", "/a/b/../mine.py", True),
    ("/a/mine.py:Mine", "/b/mine.py", False), ("mine.py", "mine.py", False), ("x.py:mine", "x.py", True),
])  # fmt: skip
def test_a_setting_names_a_class_of_the_file(text: str, file: str, is_used: bool):
    assert names_class_of(text, Path(file)) == is_used


RAW = {  # what a server sends, and closes the connection
    "html": (b"HTTP/1.0 200 OK\r\n\r\n<html>", "invalid response"),
    "cut": (b"HTTP/1.0 200 OK\r\ncontent-length: 99\r\n\r\n{", "IncompleteRead"),
    "cut error": (b"HTTP/1.0 500 No\r\ncontent-length: 99\r\n\r\n{", "answered 500: IncompleteRead"),
    "bytes": (b"HTTP/1.0 200 OK\r\n\r\n\xff", "invalid response"),
    "no http": (b"SSH-2.0-OpenSSH\r\n", "invalid response"),
    "silent": (b"", "cannot be reached"),
    "list": (b"HTTP/1.0 200 OK\r\n\r\n[]", "invalid response"),
    "other keys": (b"HTTP/1.0 200 OK\r\n\r\n{}", "invalid response"),
    "no model": (b'HTTP/1.0 200 OK\r\n\r\n{"data": []}', "lists no model"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAW)
def test_another_server_is_reported(name: str):
    content, text = RAW[name]

    class Raw(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                """Until the end of the request's head."""
            self.wfile.write(content)

    with TCPServer(("127.0.0.1", 0), Raw) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(LaunchError, match=text):
            RunningServer(f"http://127.0.0.1:{server.server_address[1]}").probe()
        thread.join()


@pytest.mark.parametrize(
    "url", ["http://localhost:abc", "http://", "http://[::1", "http://h:99999"]
)
def test_a_bad_url_is_refused(url: str):
    with pytest.raises(ConfigError, match="--url"):
        RunningServer(url)


def test_each_save_is_one_round(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("1")
    rounds = saves(file)
    next(rounds)
    for text in ("22", "333"):
        file.write_text(text)
        next(rounds)


def test_plugins_of_a_file_are_found(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(GOOD)
    assert plugin_classes(str(file)) == [("stat_logger", "Mine")]
    assert class_headers(file) == ("Mine(StatLogger)", "Helper()")


@pytest.mark.parametrize(("source", "text"), [
    ("x = (\n", "mine.py:1: SyntaxError"), (b"\xff", "mine.py:1: UnicodeDecodeError"),
])  # fmt: skip
def test_a_file_that_is_no_python_is_named_with_its_line(source: Any, text: str, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    assert main(["plugins", "dev", str(file), "--once"]) == 1
    assert text in capsys.readouterr().out


def test_a_file_that_is_not_there_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "dev", "mine.py:Mine"]) == 1
    assert "mine.py is no Python file" in capsys.readouterr().err


def test_a_record_names_what_failed_last():
    tests = {"a::one": Ran(1, "old"), "a::two": Ran(2, "new"), "a::three": Ran(2)}
    record = Record(number=2, tests=tests)
    assert record.failures() == [("a::two", "new")]
    assert record.num_held() == 1


def items(*names: str) -> list[Any]:
    return [SimpleNamespace(nodeid=name) for name in names]


def test_failed_rules_come_first_then_those_without_time(tmp_path: Path):
    file = tmp_path / "record.json"
    tests = {"held": Ran(3), "late": Ran(1), "failed": Ran(2, "text")}
    file.write_bytes(msgspec.json.encode(Record(number=3, tests=tests)))
    found = items("held", "late", "new", "failed")
    budget = Budget(file, 0.0)
    budget.pytest_collection_modifyitems(found)
    assert [each.nodeid for each in found] == ["failed", "new", "late", "held"]
    left_out = [budget.pytest_runtest_protocol(each) for each in found]
    assert left_out == [None, True, True, True]  # one is run without time, too
    budget.pytest_sessionfinish()
    assert (read_record(file).number, read_record(file).left) == (4, 3)


@pytest.mark.integration
@pytest.mark.slow
def test_a_suite_that_was_cut_off_does_not_hold(tmp_path: Path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(GOOD.replace("pass", "__import__('os')._exit(0)", 1))
    folder = tmp_path / "suite"
    folder.mkdir()
    with closing(DevLoop(file, "", 3600.0, folder, None)) as loop:
        assert not loop.round()
    assert capsys.readouterr().out.startswith("fails: the plugin ended the test process")


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
def test_rounds_on_one_file(tmp_path: Path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(GOOD.replace("pass", "raise ValueError('broken')", 1))
    folder = tmp_path / "suite"
    folder.mkdir()
    with closing(DevLoop(file, "", 3600.0, folder, None)) as loop:
        assert not loop.round()
    (failed, _, _) = capsys.readouterr().out.partition(" (")
    assert failed.startswith("fails: TestPlugin0::")
    with closing(DevLoop(file, "Mine", 0.0, folder, None)) as hurried:
        assert not hurried.round()
        assert capsys.readouterr().out.startswith(failed)
        file.write_text(GOOD)
        assert hurried.round()
    assert capsys.readouterr().out.startswith("holds: 1 rules, ")


@pytest.mark.integration
@pytest.mark.slow
def test_rounds_share_a_process_and_each_sees_the_file_as_it_is(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("1")
    test = tmp_path / "test_it.py"
    test.write_text(
        "from pathlib import Path\n"
        "def test_it():\n"
        "    text = Path('mine.txt').read_text()\n"
        "    assert text == '1'\n"
    )
    with closing(SuiteProcess(tmp_path, ["-q", "-p", "no:cacheprovider", str(test)])) as process:
        for text, status in (("1", 0), ("2", 1), ("1", 0)):
            (tmp_path / "mine.txt").write_text(text)
            deadline = time.monotonic() + 60.0
            ended, last = process.round(deadline, 60.0)
            assert (ended, ("passed" in last)) == (status, status == 0)
        assert read_record(process.record).number == 3


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.slow
def test_a_round_that_hangs_or_cannot_start_ends_the_process(tmp_path: Path):
    test = tmp_path / "test_it.py"
    test.write_text("import threading\ndef test_it():\n    threading.Event().wait()\n")
    with closing(SuiteProcess(tmp_path, ["-q", "-p", "no:cacheprovider", str(test)])) as process:
        with pytest.raises(TimeoutError):
            process.round(time.monotonic() + 60.0, 3.0)
        test.write_text("def test_it(): pass\n")
        assert process.round(time.monotonic() + 60.0, 60.0)[0] == 0  # in a new one
    with closing(SuiteProcess(tmp_path, ["--no-such-option", str(test)])) as process:
        status, last = process.round(time.monotonic() + 60.0, 60.0)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert last


def test_a_rule_that_would_not_end_in_time_is_left_out(tmp_path: Path):
    file = tmp_path / "record.json"
    tests = {"first": Ran(1, took_s=900.0), "long": Ran(2, took_s=900.0), "short": Ran(3)}
    file.write_bytes(msgspec.json.encode(Record(number=3, tests=tests)))
    budget = Budget(file, time.monotonic() + 600.0)
    left_out = [budget.pytest_runtest_protocol(each) for each in items("first", "long", "short")]
    assert left_out == [None, True, None]


HANGING = """
import os, threading
from tenonry.interfaces.stat_logger import StatLogger
def hang():
    os.write(os.open({fifo!r}, os.O_WRONLY), b"x")
    threading.Event().wait()
{at_import}
class Mine(StatLogger):
    def record(self, record): hang()
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize(
    ("at_import", "number"),
    [
        ("", signal.SIGTERM),
        pytest.param("", signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param("hang()", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("hang()", signal.SIGKILL, marks=pytest.mark.nightly),
    ],
)
def test_no_process_of_a_plugin_that_hangs_remains(tmp_path: Path, number, at_import: str):
    """The pipe is at its end once no process holds it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    pipe = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    file = tmp_path / "mine.py"
    file.write_text(HANGING.format(fifo=str(fifo), at_import=at_import))
    command = [sys.executable, "-m", "tenonry", "plugins", "dev", str(file), "--budget", "60"]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as dev_process:
            for content in (b"x", b""):
                assert select.select([pipe], [], [], 60.0)[0]
                assert os.read(pipe, 1) == content
                dev_process.send_signal(number)
            expected = {signal.SIGTERM: 143, signal.SIGKILL: -9}
            assert dev_process.wait(60.0) == expected[number]
    finally:
        os.close(pipe)
