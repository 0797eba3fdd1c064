"""A front end that does not own its engines: it connects to them through its supervisor, and reports its numbers to it.
Front end, of which several share the engines.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from tenonry import errors
from tenonry.client.core_client import CoreClient
from tenonry.client.engines import Engines
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, EngineDeadError, LaunchError, TenonryError
from tenonry.info import EngineInfo
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineEvents
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import IterationStats, StatRecord
from tenonry.transport.keys import keys_of
from tenonry_helper_pool.stats import HelperStats
from tenonry_scale_out.channel import ControlLink
from tenonry_scale_out.follower import Follower
from tenonry_scale_out.messages import (
    ChangeAnswer,
    EngineDied,
    EngineGivenUp,
    EnginesAdmitted,
    EnginesChanged,
    EnginesReady,
    Flush,
    FrontEndAnswer,
    FrontEndQuestion,
    FrontEndTask,
    LoggerCall,
    Metrics,
    MetricsRequest,
    ReplaceRequest,
    Report,
    ReportReceived,
    ScaleRequest,
    ServerConnected,
    ServerHello,
    Stop,
    SupervisorMessage,
)

logger = logging.getLogger("tenonry.scale_out")
CONNECT_TIMEOUT_S = 10.0
POLL_MS = 5
READY_POLL_MS = 100  # signals are handled in between
COUNTED_CALLS = frozenset({"record_rejection", "record_ignored_field"})
REPORT_EVERY_S = 0.25
# Reports on their way to the supervisor; above it, numbers are dropped and counted.
MAX_UNACKNOWLEDGED = 64
METRICS_TIMEOUT_S = 10.0
TakeIterations = Callable[[], dict[int, IterationStats]]


class StatForwarder(StatManager):
    """Replaces the StatManager: the supervisor's stat loggers get what this server's would. Event loop."""

    def __init__(self, config: EngineConfig, link: ControlLink) -> None:
        super().__init__(config, PluginPlan())
        self.enabled = bool(link.attachment.plan.all("stat_logger"))
        self.traces = link.attachment.traces
        self.dropped = 0
        self._link = link
        self._unacknowledged = 0
        self._unreported = 0
        self._take_iterations: TakeIterations = dict
        self._records: list[StatRecord] = []
        self._calls: dict[LoggerCall, int] = {}
        self._helpers: dict[str, HelperStats] = {}
        self._asked: dict[int, asyncio.Future[Metrics]] = {}
        self._call_ids = itertools.count(1)

    def initialized(self, info: EngineInfo) -> None:
        """Nothing to do: the supervisor's stat loggers got it from the supervisor."""

    def record(self, record: StatRecord) -> None:
        """Add the record to the next report."""
        if self.enabled:
            self._records.append(record)

    def submit(self, method: str, *args: Any) -> None:
        """Count the calls that clients cause, which may come by the thousand; report any other immediately.

        Numbers of helpers wait for the next report, and may come from any thread.
        """
        if method == "record_extra":
            self._helpers[args[0].helper] = args[0]
        elif self.enabled:
            call = LoggerCall(method, args)  # type: ignore[arg-type]  # checked where it is decoded
            self._calls[call] = self._calls.get(call, 0) + 1
            if method not in COUNTED_CALLS:
                self.flush()

    def listen(self, loop: asyncio.AbstractEventLoop, take: TakeIterations) -> None:
        """Report several times a second from now on."""
        self._take_iterations = take
        if self.enabled:
            self._report_regularly(loop)

    def _report_regularly(self, loop: asyncio.AbstractEventLoop) -> None:
        self.flush()
        loop.call_later(REPORT_EVERY_S, self._report_regularly, loop)

    def flush(self, number: int = 0) -> None:
        """Report what has collected. In answer to the Flush of that `number`, report even if it is nothing."""
        now = time.monotonic()
        records = self._records
        calls = self._calls
        helpers = [self._helpers.pop(name) for name in list(self._helpers)]
        self._records = []
        self._calls = {}
        records += (
            StatRecord(engine_index=index, time=now, iteration=iteration)
            for index, iteration in self._take_iterations().items()
        )
        if not (records or calls or helpers or number):
            return
        if self._unacknowledged >= MAX_UNACKNOWLEDGED and not number:
            num_dropped = len(records) + len(calls)
            self._helpers = {each.helper: each for each in helpers} | self._helpers
            self.dropped += num_dropped
            self._unreported += num_dropped
            return
        self._unacknowledged += 1
        report = Report(
            records=records,
            calls=list(calls.items()),
            dropped=self._unreported,
            flush=number,
            helpers=helpers if self.enabled else [],
        )
        self._link.send(report)
        self._unreported = 0

    def acknowledge(self) -> None:
        """The supervisor received a report."""
        self._unacknowledged -= 1

    async def render(self) -> tuple[bytes, str] | None:
        """The supervisor's metrics, complete. Raises TenonryError if it gives none."""
        call_id = next(self._call_ids)
        future: asyncio.Future[Metrics] = asyncio.get_running_loop().create_future()
        self._asked[call_id] = future
        self._link.send(MetricsRequest(call_id))
        try:
            async with asyncio.timeout(METRICS_TIMEOUT_S):
                metrics = await future
        except TimeoutError:
            raise TenonryError(
                f"the supervisor rendered no metrics within {METRICS_TIMEOUT_S:g} s"
            ) from None
        finally:
            del self._asked[call_id]
        if metrics.error:
            raise TenonryError(f"the supervisor could not render metrics: {metrics.error}")
        return None if metrics.content is None else (metrics.content, metrics.content_type)

    def rendered(self, metrics: Metrics) -> None:
        """The supervisor answered `render`."""
        future = self._asked.get(metrics.call_id)
        if future is not None and not future.done():
            future.set_result(metrics)

    def shutdown(self, timeout: float = 2.0) -> None:
        """Report the last numbers. Idempotent."""
        self.flush()
        self._take_iterations = dict


class AttachedEngines(Engines):
    """Those that the supervisor at the other end of `link` owns: `AsyncLLM(config, engines=AttachedEngines(…))`."""

    stats: StatForwarder
    _events: EngineEvents  # these two from `start` on
    _follower: Follower

    def __init__(self, config: EngineConfig, link: ControlLink) -> None:
        attachment = link.attachment
        self.plan = attachment.plan
        self.model = attachment.model
        self.index = attachment.index
        self.count = attachment.count
        self.stats = StatForwarder(config, link)
        self._link = link
        self.client = CoreClient(
            config,
            self.plan,
            self._on_engine_dead,
            keys_of(attachment.curve_keys),
            recovers=attachment.recovers,
            index=attachment.index,
            num_clients=attachment.count,
        )
        self._dead_engines: set[tuple[int, int]] = set()  # with their epochs
        self._pids: dict[str, int] = {}
        self._call_ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}  # by call_id

    def start(self, events: EngineEvents) -> None:
        """Wait until the engines are ready and connected. Raises LaunchError or EngineDeadError."""
        self._events = events
        self._follower = Follower(self.client, events, self._link.send)
        attachment = self._link.attachment
        self._link.send(
            ServerHello(*self.client.bind(attachment.input_address, attachment.output_address))
        )
        ready = self._wait_until_ready()
        self.info = ready.info
        self._pids = ready.pids
        self.client.expect(ready.engines)
        self.client.take_over([facts.index for facts in ready.engines], ready.coordinator)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while missing := self.client.unconnected():
            self.client.receive()  # only the engines' first frames can come yet
            message = self._link.receive(POLL_MS)
            if isinstance(message, EngineDied):
                self._on_engine_dead(message.index, message.death)
                self.client.remove_engine(message.index, str(message.death))
            if self.client.dead is not None or not (self.client.engines or self.client.awaited):
                raise EngineDeadError(f"the engine has stopped: {self.client.dead}")
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"engines {sorted(missing)} are ready but did not connect their sockets"
                )

    def _wait_until_ready(self) -> EnginesReady:
        """Without a time limit: if the supervisor ends, this process ends with it."""
        while True:
            message = self._link.receive(READY_POLL_MS)
            if isinstance(message, EnginesReady):
                return message

    def listen(self, loop: asyncio.AbstractEventLoop, take: TakeIterations) -> None:
        """Receive the supervisor's messages on the event loop, and report that requests are accepted."""
        self.stats.listen(loop, take)
        self._link.listen(loop, self._on_message)
        self._link.send(ServerConnected())

    def _on_message(self, message: SupervisorMessage) -> None:
        match message:
            case EngineDied(index, death):
                self._on_engine_dead(index, death)
            case EnginesChanged():
                self._change(message)
            case ChangeAnswer() | FrontEndAnswer():
                future = self._asked.get(message.call_id)
                if future is not None and not future.done():
                    future.set_result(message)
            case FrontEndTask() | EnginesAdmitted() | EngineGivenUp():
                self._follow(message)
            case Flush(number):
                self.stats.flush(number)
            case ReportReceived():
                self.stats.acknowledge()
            case Metrics():
                self.stats.rendered(message)
            case Stop(abort):
                self._link.on_stop(abort)
            case EnginesReady():
                logger.warning("the supervisor reported ready engines twice")

    def _follow(self, message: FrontEndTask | EnginesAdmitted | EngineGivenUp) -> None:
        """A part of a recovery."""
        match message:
            case FrontEndTask():
                self._follower.take(message)
            case EnginesAdmitted(indexes):
                self._events.on_admitted(indexes)
            case EngineGivenUp(index, reason):
                self._events.on_given_up(index, reason)

    def _change(self, message: EnginesChanged) -> None:
        self.info = message.info
        self.plan = message.plan
        self._pids = message.pids
        self._events.on_change(EngineConfig.model_validate_json(message.config))

    def _on_engine_dead(self, index: int, death: Death) -> None:
        """The supervisor reports a death, or the engine itself; the first report counts."""
        newcomer = self.client.newcomers.get(index)
        if newcomer is not None and newcomer.epoch == death.epoch:  # the supervisor knows its place
            self._events.on_switch([index], None)
        link = self.client.engines.get(index)
        epoch = death.epoch
        if not epoch and link is not None:
            epoch = link.epoch
        if (index, epoch) not in self._dead_engines:
            self._dead_engines.add((index, epoch))
            self._pids.pop(f"engine {index}", None)
            self._events.on_death(index, death)

    def pids(self) -> dict[str, int]:
        """Processes of the engines: name → process id."""
        return dict(self._pids)

    async def replace(self, changes: Mapping[str, Any]) -> None:
        """The supervisor does it, for all front ends. Raises what it raises there."""
        try:
            text = json.dumps(changes)
        except TypeError as error:
            raise ConfigError(f"changes {list(changes)} cannot be sent: {error}") from None
        await self._change_engines(ReplaceRequest(next(self._call_ids), text))

    async def scale(self, size: int, drain_timeout: float) -> None:
        """The supervisor does it, for all front ends. Raises what it raises there."""
        await self._change_engines(ScaleRequest(next(self._call_ids), size, drain_timeout))

    async def _change_engines(self, request: ReplaceRequest | ScaleRequest) -> None:
        answer: ChangeAnswer = await self._ask(request)
        if answer.kind == TimeoutError.__name__:
            raise TimeoutError(answer.error)
        if answer.error:
            kind = getattr(errors, answer.kind, TenonryError)
            if kind in {errors.PluginFault, errors.ContractViolation}:
                kind = errors.PluginError
            raise kind(answer.error)

    async def ask_others(
        self, question: Literal["drained", "forget_media"], patience_s: float = 0.0
    ) -> int:
        """Query other front ends through the supervisor. Raises TimeoutError that names unresponsive ones."""
        message = FrontEndQuestion(next(self._call_ids), question, patience_s)
        answer: FrontEndAnswer = await self._ask(message)
        if answer.error:
            raise TenonryError(answer.error)
        return answer.num_requests

    async def _ask(self, message: ReplaceRequest | ScaleRequest | FrontEndQuestion) -> Any:
        """The supervisor's answer."""
        future = asyncio.get_running_loop().create_future()
        self._asked[message.call_id] = future
        self._link.send(message)
        try:
            return await future
        finally:
            del self._asked[message.call_id]

    def shutdown(self, timeout: float = 5.0) -> None:
        """Report the last numbers. The engines and the link belong to others and stay open. Idempotent."""
        self.stats.shutdown()
        self.client.close()
