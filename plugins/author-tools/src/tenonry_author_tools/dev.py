"""`tenonry plugins dev FILE`: on save, the contract suite; then the running server takes the plugin. Command line."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenonry.errors import ConfigError, PluginNotFound, TenonryError
from tenonry.interfaces.command import Command
from tenonry_author_tools.argument_types import seconds
from tenonry_author_tools.children import run_child
from tenonry_author_tools.suite_process import SuiteProcess

if TYPE_CHECKING:
    from tenonry_author_tools.running_server import RunningServer

KEY = "TENONRY_API_KEY"
POLL_S = 0.2
IMPORT_S = 20.0
HANG_S = 60.0  # a run of the suite that takes so much longer than its budget hangs
EFFORT = "0.05"  # of the suite: a search of seconds, again with each save


class DevCommand(Command):
    """Runs the suite whenever a file is saved, and swaps the plugin in a server that uses it."""

    summary = "On save, run the contract suite of a plugin and swap it into a running server."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", help="Python file with the plugin, or FILE:CLASS.")
        parser.add_argument(
            "--url", help="Server started with FILE:CLASS. Without it, nothing is swapped."
        )
        parser.add_argument("--api-key", help=f"API key of the server. [env: {KEY}]")
        parser.add_argument(
            "--budget",
            type=seconds,
            default=2.2,
            metavar="S",
            help="Time budget of the suite in seconds; skipped rules run first next time. [default: %(default)g]",
        )
        parser.add_argument(
            "--once", action="store_true", help="Run once and exit; status 1 on failure."
        )

    def run(self, args: argparse.Namespace) -> int:
        path, _, name = args.file.partition(".py:")
        file = Path(f"{path}.py" if name else path)
        if file.suffix != ".py" or not file.is_file():
            raise ConfigError(f"{file} is no Python file; give FILE.py or FILE.py:CLASS")
        if importlib.util.find_spec("tenonry_testkit") is None:
            raise PluginNotFound("no contract suite is installed: pip install tenonry-testkit")
        server = None
        if args.url:
            from tenonry_author_tools.running_server import RunningServer

            key = args.api_key or os.environ.get(KEY, "").partition(",")[0]
            server = RunningServer(args.url, key)
            check_used(server, file)
        with leaving_on_signals(), tempfile.TemporaryDirectory() as folder:
            loop = DevLoop(file, name, args.budget, Path(folder), server)
            with contextlib.closing(loop):
                if args.once:
                    return 0 if loop.round() else 1
                for _ in saves(file):
                    loop.round()
        return 0


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise SystemExit, so that child processes end and files are removed.

    Ignored signals stay ignored, as under `nohup`.
    """
    before = {
        number: signal.signal(number, _leave)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _leave:  # else this process is leaving
                signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # a second one would interrupt the removal
    sys.exit(128 + number)


def check_used(server: RunningServer, file: Path) -> None:
    """Raises ConfigError unless a setting of the server names a class of this file."""
    if not any(names_class_of(text, file) for text in _texts(server.settings())):
        raise ConfigError(
            f"{server.url} does not use {file}: start it with the class and the flag of its kind, such as "
            f"--scheduler {file}:CLASS"
        )


def names_class_of(text: str, file: Path) -> bool:
    """Return True for FILE:CLASS of this file: by its name where the path is relative to the server's folder."""
    path, found, _ = text.rpartition(".py:")
    named = Path(f"{path}.py")
    if named.is_absolute():
        return bool(found) and named.resolve() == file.resolve()
    return bool(found) and named.name == file.name


def _texts(value: Any) -> Iterator[str]:
    """All strings of a JSON value."""
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from _texts(each)
        case list():
            for each in value:
                yield from _texts(each)


def saves(file: Path) -> Iterator[None]:
    """Now, and after each change of a file."""
    seen = None
    while True:
        try:
            found = file.stat()
        except FileNotFoundError:  # an editor that replaces it
            found = None
        now = found and (found.st_mtime_ns, found.st_size, found.st_ino)
        if now is not None and now != seen:
            seen = now
            yield
        else:
            time.sleep(POLL_S)


class DevLoop:
    """Runs rounds on one file; `folder` holds the suite and the record of its runs."""

    def __init__(
        self, file: Path, name: str, budget_s: float, folder: Path, server: RunningServer | None
    ) -> None:
        self._file = file.resolve()
        self._name = name
        self._budget_s = budget_s
        self._server = server
        options = ["-q", "-x", "-p", "no:cacheprovider", f"--testkit-effort={EFFORT}"]
        self._suite = folder / "test_suites.py"
        self._process = SuiteProcess(folder, [*options, "--rootdir", str(folder), str(self._suite)])
        self._headers: tuple[str, ...] | None = None  # of the classes whose suites are written

    def close(self) -> None:
        """End the process of the suite. Idempotent."""
        self._process.close()

    def round(self) -> bool:
        """Suite, then swap; prints a line for each. Returns False after a failure."""
        try:
            begin = time.monotonic()
            self._write_suite()
            problem, text = self._run_suite(begin + self._budget_s)
            _print_line(f"{problem or text} ({time.monotonic() - begin:.1f} s)")
            if not problem and self._server is not None:
                _print_line(swap(self._server))
        except TenonryError as error:
            problem = str(error)
            _print_line(problem)
        return not problem

    def _write_suite(self) -> None:
        """Write the suites of the file's classes, if these changed.

        Raises ConfigError if there is none, or the import fails.
        """
        from tenonry_author_tools.suite import suite_text

        headers = class_headers(self._file)
        if headers == self._headers:
            return
        command = [sys.executable, "-m", "tenonry_author_tools.classes", str(self._file)]
        try:
            done = _run(command)
        except subprocess.TimeoutExpired:
            text = f"{self._file.name} did not finish its import within {IMPORT_S:g} s"
            raise ConfigError(f"{text}; wait for nothing while it is imported") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it exited without a message"])[-1]
            raise ConfigError(f"{self._file.name} cannot be imported: {last}")
        found = [pair for pair in json.loads(done.stdout) if self._name in ("", pair[1])]
        if not found:
            raise ConfigError(
                f"{self._file.name} has no class {self._name or 'of a kind'} with a contract suite"
            )
        text = suite_text([(kind, f"{self._file}:{name}") for kind, name in found])
        self._suite.write_text(text, "utf-8")
        self._headers = headers

    def _run_suite(self, deadline: float) -> tuple[str, str]:
        """The problem, if there is one, and what held."""
        from tenonry_author_tools.budget import read_record

        number = read_record(self._process.record).number
        limit_s = self._budget_s + HANG_S
        try:
            status, last = self._process.round(deadline, limit_s)
        except TimeoutError:
            raise ConfigError(f"the plugin timed out after {limit_s:g} s") from None
        found = read_record(self._process.record)
        if found.number != number and (failures := found.failures()):
            name, text = failures[0]
            return f"fails: {name.partition('::')[2]}: {text}", ""
        if status:
            return f"fails: pytest exited with status {status}: {last}", ""
        if found.number == number:
            return "fails: the plugin ended the test process before the suite was finished", ""
        if not found.num_held():
            return "fails: no rule was tested", ""
        return "", f"holds: {found.num_held()} rules, {found.left} left for the next run"


def class_headers(file: Path) -> tuple[str, ...]:
    """Names and bases of the classes of a file. Raises ConfigError with the line of a syntax error."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", 1)
        reason = getattr(error, "msg", error)
        raise ConfigError(f"{file.name}:{line}: {type(error).__name__}: {reason}") from None
    return tuple(
        f"{node.name}({', '.join(map(ast.unparse, node.bases))})"
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )


def swap(server: RunningServer) -> str:
    """Replace the engines; returns what changed, in one line."""
    before = server.probe()
    begin = time.monotonic()
    server.replace()
    took = time.monotonic() - begin
    after = server.probe()
    changes = [
        f"{name} {1000 * old:.2f} → {1000 * new:.2f} ms"
        for name, old, new in zip(("TTFT", "ITL"), before, after, strict=True)
    ]
    return f"swapped in {took:.1f} s: {', '.join(changes)} (medians of short probes)"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return run_child(
        command,
        IMPORT_S,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
