"""Checks the grammars of requests in processes that can be killed, each grammar once. Front end; any thread.

A specification that takes too long costs its own request and one process; others are checked by further processes
meanwhile, of which there are a few at most.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing.connection
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import IO

import msgspec

from tenonry.errors import DrainingError, QueueFullError, RequestError
from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.background import FIRST_NICE, QUICK_S, Background
from tenonry_grammars.base import GrammarContext
from tenonry_grammars.check_process import Setup, Verdict, read_message, write_message

MAX_PROCESSES = 4
MAX_KNOWN = 4096  # verdicts that are kept
MAX_WAITING = 256  # requests whose verdict is not known yet, each in a thread
PARAM = "structured_output"


class GrammarChecker:
    """`check` raises RequestError for what the backend cannot serve; `seconds` of processor time are what one
    specification may take.
    """

    def __init__(self, backend: str | None, context: GrammarContext, seconds: float) -> None:
        self._setup = Setup(
            backend, context.tokenizer_json, context.vocab_size, context.end_ids, seconds
        )
        self._known: OrderedDict[bytes, Future[str | None]] = OrderedDict()
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_PROCESSES)
        # Held while a process starts, and while one works at the higher priority: one of them at a time.
        self._lane = threading.Lock()
        self._num_waiting = 0
        self._idle: list[_CheckProcess] = []
        self._is_closed = False

    def check(self, spec: StructuredOutput) -> None:
        """Wait for the verdict, where it is not known. Raises RequestError, and QueueFullError where many wait."""
        spec = msgspec.structs.replace(spec, start_after=())
        try:
            text = msgspec.msgpack.encode(spec)
        except UnicodeEncodeError:
            raise RequestError(
                "structured_output holds a lone surrogate, which is no Unicode text", PARAM
            ) from None
        key = hashlib.sha256(text).digest()
        with self._lock:
            verdict = self._known.get(key)
            waits = verdict is None or not verdict.done()
            if waits and self._num_waiting >= MAX_WAITING:
                raise QueueFullError(
                    f"the structured outputs of {self._num_waiting} requests are being checked; try again later"
                )
            is_mine = verdict is None
            if verdict is None:
                verdict = self._known[key] = Future()
            self._known.move_to_end(key)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            self._num_waiting += waits
        try:
            if is_mine:
                self._find_out(key, spec, verdict)
            error = verdict.result()
        finally:
            if waits:
                with self._lock:
                    self._num_waiting -= 1
        if error is not None:
            raise RequestError(f"structured_output cannot be served: {error}", PARAM)

    def shutdown(self) -> None:
        """End the processes; what still waits for one is refused."""
        with self._lock:
            self._is_closed = True
            idle = self._idle
            self._idle = []
        for process in idle:
            process.close()

    def _find_out(self, key: bytes, spec: StructuredOutput, verdict: Future[str | None]) -> None:
        try:
            error = self._ask(spec)
        except BaseException as problem:
            self._forget(key)
            verdict.set_exception(problem)
            raise
        if error is _TOO_LONG:  # a busy machine may do better the next time
            self._forget(key)
            error = (
                f"it was not compiled within {self._setup.seconds:g} s of processor time, took too much memory or is "
                "nested too deeply; simplify it, or raise the IO processor's option grammar_seconds"
            )
        verdict.set_result(error)

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._known.pop(key, None)

    def _ask(self, spec: StructuredOutput) -> str | None:
        with self._free:
            with self._lane:
                process = self._process()
                try:
                    process.send(spec)
                    process.wait(QUICK_S)
                except BaseException:
                    process.close()
                    raise
            try:
                error = process.answer()
            except BaseException:
                process.close()
                raise
            with self._lock:
                keeps = process.is_alive and not self._is_closed
                if keeps:
                    self._idle.append(process)
            if not keeps:
                process.close()
            return error

    def _process(self) -> _CheckProcess:
        """One that waits, or a new one. Raises DrainingError, and RequestError for one that does not start."""
        with self._lock:
            if self._is_closed:
                raise DrainingError("this front end ends: it checks no more structured outputs")
            process = self._idle.pop() if self._idle else None
        if process is not None and process.has_ended:
            process.close()
            process = None
        return process or _CheckProcess(self._setup)


_TOO_LONG = "too long"


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tenonry_grammars.check_start"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


class _CheckProcess:
    """One process, asked by one thread at a time. `is_alive` is False once it has ended."""

    def __init__(self, setup: Setup) -> None:
        # Lowered from its first instruction on, as the thread is that starts it.
        self._process = Background("grammar-check-start", 0, FIRST_NICE).run(_start)
        self.is_alive = True
        try:
            self.send(setup)
            answer = self._read()
        except BaseException:
            self.close()
            raise
        if answer is None or answer.error:
            self.close()
            what = answer.error if answer is not None else "the checking process ended at its start"
            raise RequestError(f"structured output is not available: {what}", PARAM)

    @property
    def has_ended(self) -> bool:
        """Whether it ended by itself, or something killed it while it waited."""
        return self._process.poll() is not None

    def send(self, message: msgspec.Struct) -> None:
        """Ask; one that has ended does not answer."""
        to_process, _ = self._streams()
        with contextlib.suppress(BrokenPipeError):
            write_message(to_process, message)

    def wait(self, seconds: float) -> None:
        """Return once the answer begins, or after so long."""
        _, from_process = self._streams()
        multiprocessing.connection.wait([from_process.fileno()], seconds)

    def answer(self) -> str | None:
        """What is wrong with what was sent last, or None; it waits."""
        answer = self._read()
        if answer is None:
            self.is_alive = False
            return _TOO_LONG
        return answer.error

    def close(self) -> None:
        self.is_alive = False
        self._process.kill()
        for stream in self._streams():
            with contextlib.suppress(OSError):
                stream.close()
        self._process.wait()

    def _streams(self) -> tuple[IO[bytes], IO[bytes]]:
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the checking process was started without pipes")
        return process.stdin, process.stdout

    def _read(self) -> Verdict | None:
        _, from_process = self._streams()
        return read_message(from_process, Verdict)
