"""The health of the engines as probes see it: a busy engine does not delay them. Front end, event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

ANSWER_S = 0.1  # a probe waits no longer for the engines; they answer between two steps
LOOK_S = 0.5  # validity of one process check for all probes
STOPPED = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP})
TITLE = "tenonry: "


class HealthCheck:
    """Runs one check of the engines at a time. Until the result or the deadline, the last result is valid."""

    def __init__(self) -> None:
        self._check: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    async def ask(self, engine: AsyncLLM) -> Exception | None:
        """Return the error of an unhealthy engine; None if all are healthy. Raises nothing."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._run(engine))
        await asyncio.wait({self._check}, timeout=ANSWER_S)
        return self._error

    async def _run(self, engine: AsyncLLM) -> None:
        try:
            await engine.check_health()
        except Exception as error:  # noqa: BLE001  whatever it is, the engines are not healthy
            self._error = error
        else:
            self._error = None


class StoppedProcesses:
    """Detects engine processes on this node that are stopped, by SIGSTOP or by a debugger.

    The operating system reports the state, and no message is sent: an engine in a long step runs, and a stopped one
    could not answer. Ranks are child processes of their engine.
    """

    def __init__(self) -> None:
        self._seen: tuple[str, ...] = ()
        self._look_at = 0.0
        self._look: asyncio.Future[tuple[str, ...]] | None = None

    async def ask(self, engine: AsyncLLM) -> tuple[str, ...]:
        """Each with its title and number, not older than `LOOK_S`."""
        if self._look is None and time.monotonic() >= self._look_at:
            look = asyncio.to_thread(stopped_processes, engine.engine_pids)
            self._look = asyncio.ensure_future(look)
        if self._look is not None:
            self._seen = await asyncio.shield(self._look)
            self._look_at = time.monotonic() + LOOK_S
            self._look = None
        return self._seen


def stopped_processes(pids: Mapping[str, int]) -> tuple[str, ...]:
    """Stopped ones among these engines and all processes below them."""
    found = []
    for name, pid in pids.items():
        with contextlib.suppress(psutil.Error):  # it has ended
            engine = psutil.Process(pid)
            tree = [engine, *engine.children(recursive=True)]
            found += [_describe(each, name) for each in tree if _is_stopped(each)]
    return tuple(found)


def _is_stopped(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() in STOPPED
    return False


def _describe(process: psutil.Process, engine: str) -> str:
    title = ""
    with contextlib.suppress(psutil.Error):
        title = " ".join(process.cmdline()).rstrip("\0 ")
    is_ours = title.startswith(TITLE)
    name = title.removeprefix(TITLE) if is_ours else f"a process of {engine}"
    return f"{name} (pid {process.pid})"
