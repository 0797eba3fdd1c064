"""Resources shared by several API servers: the engines, the stat loggers, and the channel on which servers attach to
them. The supervisor's process; every method runs on its event loop, or before there is one.

The supervisor is client 0 of the engines, the one that receives their statistics; its only requests to them attach and
detach the other clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tenonry.client.engines import OwnedEngines
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError
from tenonry.info import EngineInfo
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
from tenonry.launch.fleet import EngineFleet
from tenonry.stats import SchedulerStats
from tenonry.transport.folder import RunDirectory
from tenonry_scale_out.channel import ControlRouter
from tenonry_scale_out.front_ends import FrontEnds
from tenonry_scale_out.messages import (
    Attachment,
    EngineDied,
    EnginesChanged,
    EnginesReady,
    Flush,
    FrontEndQuestion,
    Metrics,
    MetricsRequest,
    ReplaceRequest,
    Report,
    ReportReceived,
    ScaleRequest,
    ServerConnected,
    ServerFailed,
    ServerHello,
    ServerMessage,
    Stop,
    SupervisorMessage,
    TaskDone,
)
from tenonry_scale_out.recovery import SharedRecovery

logger = logging.getLogger("tenonry.scale_out")
FLUSH_TIMEOUT_S = 2.0  # a server that hangs delays the metrics by no more than this
DRAIN_GRACE_MS = 50


class _Server:
    """One API server as the hub sees it. `run_directory` is removed once it is connected. `info`: what it knows."""

    __slots__ = ("connected", "epochs", "hello", "index", "info", "run_directory")

    def __init__(self, index: int, run_directory: RunDirectory) -> None:
        self.index = index
        self.run_directory = run_directory
        self.info: EngineInfo | None = None
        self.hello: ServerHello | None = None
        self.connected = False
        self.epochs: dict[int, int] = {}  # of the announced engines


class Hub:
    """`on_engine_died(reason)` follows every death of an engine, `on_connected(index)` the connection of a server."""

    def __init__(
        self,
        config: EngineConfig,
        num_servers: int,
        *,
        on_connected: Callable[[int], None],
        on_engine_died: Callable[[str], None],
        context: str = "server",
    ) -> None:
        self._on_connected = on_connected
        self._on_engine_died = on_engine_died
        self._num_servers = num_servers
        self._engines = OwnedEngines(config, context=context, coordinated=True)
        self._client = self._engines.client
        self._stats = self._engines.stats
        self._control = ControlRouter(self._on_message)
        self._servers: dict[bytes, _Server] = {}
        self._failures: dict[int, str] = {}
        self._starts = itertools.count(1)
        self._flush_numbers = itertools.count(1)
        self._flushes: dict[int, tuple[set[bytes], asyncio.Future[None]]] = {}
        self._deaths: queue.SimpleQueue[tuple[int, Death]] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._front_ends = FrontEnds(self._serving, self._control.send)
        with contextlib.ExitStack() as built:
            built.callback(self._engines.shutdown)
            self._recovery = SharedRecovery(
                self._engines,
                self._front_ends,
                on_death=self._on_engine_dead,
                on_change=self._on_change,
                on_end=on_engine_died,
            )
            built.pop_all()

    def _serving(self) -> dict[bytes, int]:
        return {
            identity: server.index for identity, server in self._servers.items() if server.connected
        }

    @property
    def _fleet(self) -> EngineFleet:
        return self._engines.fleet

    @property
    def config(self) -> EngineConfig:
        """Current configuration of the engines."""
        return self._engines.config

    @property
    def info(self) -> EngineInfo:
        """Current facts about the engines."""
        return self._engines.info

    # ------------------------------------------------------------------ start
    def attachment(self, index: int) -> Attachment:
        """The attachment of a server that is about to start."""
        run_directory = self._fleet.run_directory()
        address = run_directory.address("control")
        identity = f"{index}.{next(self._starts)}"
        self._control.bind(address)
        self._servers[identity.encode()] = _Server(index, run_directory)
        return Attachment(
            index=index,
            count=self._num_servers,
            identity=identity,
            control_address=address,
            input_address=self._fleet.address(run_directory),
            output_address=self._fleet.address(run_directory),
            plan=self._engines.plan,
            model=self._engines.model,
            curve_keys="" if self._fleet.curve is None else self._fleet.curve.encode(),
            traces=self._stats.traces,
            recovers=self._client.recovers,
        )

    def start(self) -> None:
        """Start the engines; returns when they can be used. Raises LaunchError or ConfigError."""
        self._engines.start(self._recovery)

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve the servers from now on."""
        self._loop = loop
        self._control.listen(loop)
        loop.add_reader(self._client.output_fd, self._on_outputs)
        loop.call_soon(self._on_outputs)  # edge-triggered: something may be there already
        loop.call_soon(self._on_deaths)
        self._recovery.plugin.listen()

    # ------------------------------------------------------------------ engines
    def _on_engine_dead(self, index: int, death: Death) -> None:
        """Any thread."""
        self._deaths.put((index, death))
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: everything ends anyway
                loop.call_soon_threadsafe(self._on_deaths)

    def _epoch(self, index: int) -> int:
        link = self._client.engines.get(index)
        return link.epoch if link else 0

    def _on_deaths(self) -> None:
        while not self._deaths.empty():
            index, death = self._deaths.get()
            if index >= FIRST_STANDBY:  # no front end knows it
                self._recovery.plugin.on_death(index, death, {})
                continue
            if self._epoch(index) != death.epoch:  # another one has its place already
                continue
            logger.error("the engine failed: %s", death)
            self._client.engine_died(index, death)
            self._on_outputs()  # its last message
            self._client.remove_engine(index, str(death))
            self._stats.observe(index, SchedulerStats())  # no work left
            self._broadcast(EngineDied(index, death))
            self._recovery.plugin.on_death(index, death, {})
            self._on_engine_died(str(death))

    @property
    def dead(self) -> str | None:
        """Reason why no engine is left; None if one is."""
        return self._client.dead

    def pids(self) -> dict[str, int]:
        """Processes of engines and coordinator: name → process id."""
        return self._engines.pids()

    def _on_outputs(self) -> None:
        while not self._is_closed and (outputs := self._client.receive()) is not None:
            if outputs.scheduler_stats is not None:
                self._stats.observe(outputs.engine_index, outputs.scheduler_stats)

    # ------------------------------------------------------------------ servers
    def _on_message(self, identity: bytes, message: ServerMessage) -> None:
        server = self._servers.get(identity)
        if isinstance(message, Report):  # of one that is gone, too
            self._take_report(identity, message)
        elif isinstance(message, ServerFailed):
            self._failures[int(identity.partition(b".")[0])] = message.error
        elif server is None or self._loop is None or self._loop.is_closed():
            return  # too late for messages that need an answer
        elif isinstance(message, ServerHello):
            server.hello = message
            self._spawn(self._attach(identity, server))
        elif isinstance(message, ServerConnected):
            server.connected = True
            server.run_directory.close()
            self._on_connected(server.index)
            if server.info is not self.info:
                self._control.send(identity, self._changed())
            self._spawn(self._recovery.catch_up(identity, server.index, server.epochs))
        elif isinstance(message, TaskDone):
            self._front_ends.done(message)
        elif isinstance(message, FrontEndQuestion):
            self._spawn(self._front_ends.answer(identity, message))
        elif isinstance(message, ReplaceRequest | ScaleRequest):
            self._spawn(self._recovery.answer(identity, message))
        elif isinstance(message, MetricsRequest):
            self._spawn(self._answer_metrics(identity, message.call_id))

    async def _attach(self, identity: bytes, server: _Server) -> None:
        """Let every engine connect to the server, and name them to the server, which waits for them."""
        hello = server.hello
        async with self._recovery.lock:  # while engines come back, none may be there
            if hello is not None:
                await self._call(
                    "attach_client", server.index, hello.input_address, hello.output_address
                )
            engines = [link.facts for link in self._client.engines.values() if not link.dead]
            server.info = self.info
            server.epochs = {engine.index: engine.epoch for engine in engines}
            ready = EnginesReady(
                engines=engines,
                coordinator=self._fleet.coordinator,
                info=self.info,
                pids=self.pids(),
            )
            self._control.send(identity, ready)

    def detach(self, index: int) -> str:
        """A server ended: abort its requests. Returns its last error, or an empty string."""
        self._control.read(DRAIN_GRACE_MS)
        for identity in [
            identity for identity, server in self._servers.items() if server.index == index
        ]:
            run_directory = self._servers.pop(identity).run_directory
            self._control.unbind(run_directory.address("control"))
            run_directory.close()
            self._front_ends.left(identity)
            for number in list(self._flushes):
                self._flushed(number, identity)
        if self.dead is None:
            self._spawn(self._call("detach_client", index))
        return self._failures.pop(index, "")

    def last_error(self, index: int) -> str:
        """The last error of a server that ended before `listen`, or an empty string."""
        self._control.read(DRAIN_GRACE_MS)
        return self._failures.pop(index, "")

    async def _call(self, method: str, *args: Any) -> None:
        """Call a method of every engine that is there; the death of one is reported by `on_engine_died`."""
        calls = [self._client.call_link(link, method, *args) for link in self._client.links]
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, EngineGenerateError):
                logger.error("%s of client %s failed: %s", method, args[0], answer)
            elif isinstance(answer, Exception) and not isinstance(answer, EngineDeadError):
                raise answer

    def stop_servers(self, *, abort: bool) -> set[int]:
        """Ask servers to finish, or abort, what runs, and to end; returns the indexes of those that are connected."""
        self._broadcast(Stop(abort))
        return {server.index for server in self._servers.values() if server.connected}

    def _broadcast(self, message: SupervisorMessage) -> None:
        for identity, server in self._servers.items():
            if server.hello is not None:
                self._control.send(identity, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ changes
    def _changed(self) -> EnginesChanged:
        config = self.config.model_dump_json()
        return EnginesChanged(config, self.info, self._engines.plan, self.pids())

    def _on_change(self) -> None:
        for identity, server in self._servers.items():
            if server.connected:
                server.info = self.info
                self._control.send(identity, self._changed())

    # ------------------------------------------------------------------ numbers
    def _take_report(self, identity: bytes, report: Report) -> None:
        for record in report.records:
            self._stats.record(record)
        for call, count in report.calls:
            for _ in range(count):
                self._stats.submit(call.method, *call.args)
        index = int(identity.partition(b".")[0])
        for stats in report.helpers:
            self._stats.submit("record_extra", msgspec.structs.replace(stats, front_end=index))
        if report.dropped:
            logger.warning(
                "API server %s lost %d records; totals are incomplete",
                identity.decode(),
                report.dropped,
            )
        if report.flush:
            self._flushed(report.flush, identity)
        self._control.send(identity, ReportReceived())

    def _flushed(self, number: int, identity: bytes) -> None:
        waiting, future = self._flushes.get(number, (set(), None))
        waiting.discard(identity)
        if future is not None and not waiting and not future.done():
            future.set_result(None)

    async def _flush_all(self) -> None:
        """Wait until every connected server has reported, and the stat loggers have seen it all."""
        loop = asyncio.get_running_loop()
        number = next(self._flush_numbers)
        waiting = {identity for identity, server in self._servers.items() if server.connected}
        flushed = loop.create_future()
        self._flushes[number] = (waiting, flushed)
        try:
            for identity in list(waiting):
                self._control.send(identity, Flush(number))
            await flushed
            self._on_outputs()
            observed = asyncio.Event()
            self._stats.after(lambda: loop.call_soon_threadsafe(observed.set))
            await observed.wait()
        finally:
            del self._flushes[number]

    async def _answer_metrics(self, identity: bytes, call_id: int) -> None:
        """Render the metrics, complete: they count what any server has sent to a client by now."""
        try:
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                await self._flush_all()
        except TimeoutError:
            logger.warning(
                "the metrics may be incomplete: not every API server and stat logger answered in time"
            )
        try:
            content, content_type = await self._stats.render() or (None, "")
            self._control.send(identity, Metrics(call_id, content, content_type))
        except Exception as error:
            logger.exception("rendering metrics failed")
            self._control.send(identity, Metrics(call_id, error=f"{type(error).__name__}: {error}"))

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engines, after the servers have ended. Idempotent."""
        self._control.read(DRAIN_GRACE_MS)
        self._is_closed = True
        self._recovery.plugin.shutdown()
        self._engines.shutdown(timeout)
        for server in self._servers.values():
            server.run_directory.close()
        self._control.close()
