"""Restart, replacement and number of engines that several front ends share. The supervisor's process, its event loop.

The supervisor starts an engine and connects it to every front end, which then uses it instead of the former one. The
front ends try their suspects in it one after another, while the others wait; then all send the requests that wait for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tenonry.client.engines import OwnedEngines
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, LaunchError, TenonryError
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
from tenonry.interfaces.recovery import EngineEvents, EngineRecovery, RecoveryContext
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import CoordinatorFacts, EngineCoreRequest
from tenonry.plugin.manager import build_plugin
from tenonry_scale_out.front_ends import ANSWER_TIMEOUT_S, FrontEnds
from tenonry_scale_out.messages import (
    ChangeAnswer,
    EngineDied,
    EngineGivenUp,
    EnginesAdmitted,
    ReplaceRequest,
    ScaleRequest,
    TaskDone,
)
from tenonry_scale_out.scaling import scale

logger = logging.getLogger("tenonry.scale_out")
CALLS_TIMEOUT_S = 60.0


class NoStreams:
    """The open requests of a supervisor."""

    def completion(self, handle: int) -> None:
        return None

    def is_open(self, request_id: str) -> bool:
        return False

    def send(self, requests: Sequence[EngineCoreRequest]) -> None:
        """There are none."""

    def fail(self, handles: Iterable[int], error: Exception) -> None:
        """There are none."""


class SharedRecovery(EngineEvents):
    """Listens to the engines, lets `plugin` decide, and passes on what becomes of them.

    `on_death` is called from any thread, `on_change` for each configuration, `on_end(reason)` for each engine that is
    given up.
    """

    def __init__(
        self,
        engines: OwnedEngines,
        front_ends: FrontEnds,
        *,
        on_death: Callable[[int, Death], None],
        on_change: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._engines = engines
        self._client = engines.client
        self._front_ends = front_ends
        self._ask = front_ends.ask
        self._ask_all = front_ends.ask_all
        self._task = front_ends.task
        self._broadcast = front_ends.broadcast
        self._on_death = on_death
        self._on_change = on_change
        self._on_end = on_end
        self._switching: set[int] = (
            set()
        )  # engines that replace others, and of which front ends do not know that
        self._coordinator: CoordinatorFacts | None = None  # of those that switch
        context = RecoveryContext(engines.config, engines=engines, events=self, streams=NoStreams())
        self.lock = context.lock
        self.plugin: EngineRecovery = build_plugin(engines.plan.get("engine_recovery"), context)

    # ------------------------------------------------------------------ what happens to engines
    def on_death(self, index: int, death: Death) -> None:
        self._on_death(index, death)

    def on_change(self, config: EngineConfig) -> None:
        self._on_change()
        self.plugin.on_change(config)

    def on_switch(self, indexes: Sequence[int], coordinator: CoordinatorFacts | None) -> None:
        self._coordinator = coordinator
        self._client.take_over(indexes, coordinator)

    def on_refused(self, indexes: Sequence[int]) -> None:
        if indexes[0] >= FIRST_STANDBY:
            return
        self._switching.difference_update(indexes)
        self._broadcast(self._task("drop", indexes))
        for index in indexes:
            if index not in self._client.engines:  # front ends may use it already
                self._broadcast(EngineDied(index, Death("it could not be started")))

    async def on_started(self, indexes: Sequence[int]) -> None:
        """One front end after the other tries its suspects. Engines that were replaced are there until then."""
        if self._switching.intersection(indexes):
            self._switching.difference_update(indexes)
            await self._ask_all("switch", None, indexes=indexes, coordinator=self._coordinator)
        for identity in list(self._front_ends.serving()):
            if all(map(self._lives, indexes)):
                task = self._task("try", indexes)
                with contextlib.suppress(TimeoutError):  # the front end ended
                    await self._ask(identity, task, None)

    def on_admitted(self, indexes: Sequence[int]) -> None:
        """Requests of all front ends may come."""
        alive = [index for index in indexes if self._lives(index)]
        self._client.awaited.difference_update(alive)
        self._broadcast(EnginesAdmitted(alive))

    def on_given_up(self, index: int, reason: str) -> None:
        self._client.awaited.discard(index)
        if not self._client.engines and not self._client.awaited:
            self._client.dead = reason
        self._broadcast(EngineGivenUp(index, reason))
        self._on_end(reason)

    def _lives(self, index: int) -> bool:
        link = self._client.engines.get(index)
        return link is not None and not link.dead

    async def divergence(self) -> set[str]:
        """As the front ends know it."""
        answers = await self._ask_all("check", ANSWER_TIMEOUT_S)
        return {each for answer in answers.values() for each in answer.obstacles}

    # ------------------------------------------------------------------ starting
    async def on_join(self, fleet: Any, indexes: Sequence[int]) -> None:
        """Raise EngineDeadError if one of the engines died in the interval."""
        if indexes[0] >= FIRST_STANDBY:  # it is connected to no front end
            return
        servers = self._front_ends.serving().items()
        newcomers = self._client.newcomers.keys() & indexes
        if newcomers & self._client.engines.keys():  # all front ends get them, or none does
            connects = [self._connect(*server, fleet, indexes) for server in servers]
            try:
                await asyncio.gather(*connects)
            except TimeoutError as error:
                raise LaunchError(
                    f"an API server is not connected to engines {list(indexes)}: {str(error) or 'no answer in time'}"
                ) from None
            self._switching.update(indexes)
            return
        await asyncio.gather(*(self._use(*server, fleet, indexes) for server in servers))

    async def catch_up(self, identity: bytes, index: int, epochs: Mapping[int, int]) -> None:
        """Connect a newly serving front end to engines started after its registration."""
        async with self.lock:
            missing = [
                link.index
                for link in self._client.engines.values()
                if epochs.get(link.index) != link.epoch and not link.dead
            ]
            with contextlib.suppress(EngineDeadError):  # another recovery follows
                if missing:
                    await self._use(identity, index, self._engines.fleet, missing)
                    self._front_ends.send(identity, EnginesAdmitted(missing))

    async def _use(
        self, identity: bytes, server: int, fleet: EngineFleet, indexes: Sequence[int]
    ) -> None:
        """Let one front end use engines from now on. One that does not answer goes without them."""
        try:
            await self._connect(identity, server, fleet, indexes)
            switch = self._task("switch", indexes, coordinator=fleet.coordinator)
            await self._ask(identity, switch, ANSWER_TIMEOUT_S)
        except (TimeoutError, EngineGenerateError) as error:
            logger.error(  # noqa: TRY400 - the message names the cause
                "API server %d continues without engines %s: %s",
                server,
                list(indexes),
                str(error) or f"no answer within {ANSWER_TIMEOUT_S:g} s",
            )

    async def _connect(
        self, identity: bytes, server: int, fleet: EngineFleet, indexes: Sequence[int]
    ) -> TaskDone:
        """Let engines connect to one front end. Raises TimeoutError without an answer, EngineGenerateError if it could
        not.
        """
        with contextlib.closing(fleet.run_directory()) as directory:
            bind = self._task(
                "bind",
                indexes,
                engines=[fleet.engines[index] for index in indexes if index in fleet.engines],
                input_address=fleet.address(directory),
                output_address=fleet.address(directory),
            )
            bound = await self._ask(identity, bind, ANSWER_TIMEOUT_S)
            for index in indexes:
                await self._client.call_engine(index, "attach_client", server, *bound.addresses)
            connect = self._task("connect", indexes)
            answer = await self._ask(identity, connect, CALLS_TIMEOUT_S + ANSWER_TIMEOUT_S)
        if answer.error:
            raise EngineGenerateError(answer.error)
        return answer

    # ------------------------------------------------------------------ changes
    async def answer(self, asker: bytes, request: ReplaceRequest | ScaleRequest) -> None:
        """Change the engines for a front end, and send it the outcome."""
        answer = ChangeAnswer(request.call_id)
        try:
            async with self.lock:
                if isinstance(request, ScaleRequest):
                    given = request.size, request.drain_timeout, self.plugin.replace
                    await scale(self._engines, self._front_ends, *given)
                else:
                    await self.plugin.replace(json.loads(request.changes))
        except Exception as error:
            if not isinstance(error, TenonryError | TimeoutError):
                logger.exception("changing engines failed")
            answer.error = str(error)
            answer.kind = type(error).__name__
        self._front_ends.send(asker, answer)
