"""A profile of a front end's event loop, alongside those of the ranks: Python functions over time. Front end.

The file is a Chrome trace, as torch.profiler writes one, on the same clock: Perfetto and chrome://tracing open both.
"""

from __future__ import annotations

import asyncio
import atexit
import gzip
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from tenonry.errors import ConfigError

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.interfaces.call_set import EngineCalls

logger = logging.getLogger("tenonry.scale_out")

LEAST_NS = 10_000  # shorter calls are part of their caller
MOST_CALLS = 500_000  # about 100 MB of file; what runs afterwards is not recorded
PERIOD_S = 7_889_238  # torch's traces count time from the last multiple of this (Kineto, ChromeTraceBaseTime)


class Recording:
    """Calls of one thread, from `start` to `stop`. `calls`: (code, start, duration), in ns of `perf_counter_ns`."""

    def __init__(self, least_ns: int = LEAST_NS, most: int = MOST_CALLS) -> None:
        self.calls: list[tuple[CodeType, int, int]] = []
        self.is_full = False
        self._open: list[tuple[CodeType, int]] = []
        self._least_ns = least_ns
        self._most = most
        self._thread = threading.current_thread()
        self.thread_id = threading.get_native_id()
        self.thread_name = self._thread.name

    def start(self) -> None:
        """Raises ConfigError where something else profiles this thread."""
        if sys.getprofile() is not None:
            raise ConfigError(
                f"another profiler watches the thread {self.thread_name}; end it before start_profile"
            )
        sys.setprofile(self._see)

    def stop(self) -> None:
        """Calls that still run end now."""
        if self._thread is threading.current_thread() and sys.getprofile() == self._see:
            sys.setprofile(None)
        now = time.perf_counter_ns()
        while self._open:
            self._add(*self._open.pop(), now)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._open.append((frame.f_code, time.perf_counter_ns()))
        elif event == "return":
            self._close(frame.f_code)

    def _close(self, code: CodeType) -> None:
        """A function that began before the recording is on no list; all that it called have ended by now."""
        now = time.perf_counter_ns()
        while self._open:
            begun, start = self._open.pop()
            self._add(begun, start, now)
            if begun is code:
                return

    def _add(self, code: CodeType, start: int, end: int) -> None:
        if self.is_full or end - start < self._least_ns:
            return
        self.calls.append((code, start, end - start))
        if len(self.calls) >= self._most:
            self.is_full = True
            if self._thread is threading.current_thread():
                sys.setprofile(None)


class LoopProfile:
    """At most one profile at a time, of the thread that starts it; a process that ends writes what it has."""

    def __init__(self, folder: str, *, compress: bool = False, process: str = "front-end") -> None:
        self._folder = Path(folder)
        self._compress = compress
        self._process = process
        self._name = f"{socket.gethostname()}_{os.getpid()}.{process}"
        self._count = 0
        self._running: Recording | None = None

    def start(self) -> None:
        """Raises ConfigError while a profile runs, and where the folder cannot be made."""
        if self._running is not None:
            raise ConfigError("a profile runs already; stop_profile ends and writes it")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"no folder for profiles at {self._folder}: {error}") from error
        recording = Recording()
        recording.start()
        self._running = recording
        atexit.register(self.end)

    def stop(self) -> Recording | None:
        """End the recording and return it, for `write`; None if no profile runs."""
        recording = self._running
        self._running = None
        if recording is not None:
            atexit.unregister(self.end)
            recording.stop()
        return recording

    def write(self, recording: Recording) -> Path:
        """The new file. Raises ConfigError where it cannot be written."""
        suffix = "json.gz" if self._compress else "json"
        path = self._folder / f"{self._name}.{self._count}.trace.{suffix}"
        self._count += 1
        opened: Any = gzip.open if self._compress else open
        try:
            with opened(path, "wt", encoding="utf-8") as file:
                for part in trace(recording, self._process):
                    file.write(part)
        except OSError as error:
            raise ConfigError(f"the profile {path} cannot be written: {error}") from error
        if recording.is_full:
            logger.warning("The profile %s ends early, at %d calls", path, len(recording.calls))
        logger.info("Wrote the profile %s", path)
        return path

    def end(self) -> None:
        """The process ends: a profile that runs is written."""
        recording = self.stop()
        if recording is not None:
            self.write(recording)


def trace(recording: Recording, process: str) -> Iterator[str]:
    """A Chrome trace in pieces, one event each: complete events (`ph` X), times in µs since `baseTimeNanoseconds`."""
    offset = time.time_ns() - time.perf_counter_ns()
    base = time.time_ns() // (PERIOD_S * 10**9) * PERIOD_S * 10**9
    place = {"pid": os.getpid(), "tid": recording.thread_id}
    head = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    for kind, name in (("process_name", process), ("thread_name", recording.thread_name)):
        yield json.dumps({"ph": "M", "name": kind, **place, "args": {"name": name}}) + ",\n"
    for code, start, duration in recording.calls:
        event = {
            "ph": "X",
            "cat": "python_function",
            "name": code.co_qualname,
            **place,
            "ts": (start + offset - base) / 1000,
            "dur": duration / 1000,
            "args": {"source": f"{code.co_filename}:{code.co_firstlineno}"},
        }
        yield json.dumps(event) + ",\n"
    full = {"complete": not recording.is_full}
    yield json.dumps({"ph": "M", "name": "recording", **place, "args": full}) + "\n]}\n"


class ProfiledCalls:
    """Calls of engines; their profiles also cover the event loop of the caller."""

    def __init__(self, calls: EngineCalls, profile: LoopProfile) -> None:
        self._calls = calls
        self._profile = profile

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """As `EngineCalls.call`. A start that an engine rejects leaves none here."""
        if method == "start_profile":
            return await self._start()
        if method == "stop_profile":
            return await self._stop()
        return await self._calls.call(method, *args, **kwargs)

    async def _start(self) -> list[Any]:
        self._profile.start()
        try:
            return await self._calls.call("start_profile")
        except BaseException:
            self._profile.stop()
            raise

    async def _stop(self) -> list[Any]:
        recording = self._profile.stop()
        try:
            return await self._calls.call("stop_profile")
        finally:
            if recording is not None:
                await asyncio.to_thread(self._profile.write, recording)

    async def change(self, method: str, *args: Any) -> list[Any]:
        """As `EngineCalls.change`."""
        return await self._calls.change(method, *args)

    async def call_engine(self, index: int, method: str, *args: Any) -> Any:
        """As `EngineCalls.call_engine`."""
        return await self._calls.call_engine(index, method, *args)


def profile_front_end(engine: AsyncLLM, profile: LoopProfile) -> None:
    """From now on `start_profile` and `stop_profile` of `engine` are also about its event loop."""
    operations = engine.calls["operations"]
    operations.engines = ProfiledCalls(operations.engines, profile)
