"""How engines that several front ends share come back after a death, and are replaced. The supervisor's process, its
event loop.

The supervisor starts an engine, and connects it to every front end, which then uses it in place of the one before. Each
has its turn to try its suspects in it, while the others wait, and then all send what waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenonry.client.engines import OwnedEngines
from tenonry.continuity.restarts import Restarts
from tenonry.errors import EngineDeadError, EngineGenerateError, LaunchError
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import CoordinatorFacts
from tenonry.replacement.replacement import CALLS_TIMEOUT_S, check_unchanged
from tenonry_scale_out.messages import (
    EngineGivenUp,
    EnginesAdmitted,
    RecoveryTask,
    SupervisorMessage,
    TaskDone,
)

logger = logging.getLogger("tenonry.scale_out")
ANSWER_TIMEOUT_S = 10.0


class SharedRecovery:
    """`servers()`: the front ends that serve, identity → index. `send(identity, message)` to one of them.
    `on_end(reason)` is called for each engine that is given up.
    """

    def __init__(
        self,
        engines: OwnedEngines,
        servers: Callable[[], Mapping[bytes, int]],
        send: Callable[[bytes, SupervisorMessage], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._engines = engines
        self._client = engines.client
        self._servers = servers
        self._send = send
        self._on_end = on_end
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[bytes, asyncio.Future[TaskDone]]] = {}
        self._obstacles: set[str] = set()
        self.lock = asyncio.Lock()
        engines.on_join = self._connect_all
        engines.on_switch = self._take_over
        engines.on_moved = self._switch_all
        engines.on_refused = self._drop
        self._coordinator: CoordinatorFacts | None = None  # of those that switch
        self.restarts = Restarts(
            self, self._restart, engines.stats.record, self.lock, engines.num_together
        )
        self.restarts.obstacles = self._obstacles
        self.restarts.num_at_once = lambda: engines.standbys.num_at_once

    # ------------------------------------------------------------------ what Restarts asks
    @property
    def is_over(self) -> bool:
        """No engine is left, or wanted."""
        return self._client.dead is not None

    @property
    def serves(self) -> bool:
        """Whether engines are left to which streams go."""
        return any(not link.dead for link in self._client.engines.values())

    def has(self, index: int) -> bool:
        """Whether this engine is there."""
        return index in self._client.engines

    async def admit(self, indexes: Sequence[int]) -> None:
        """One front end after the other tries its suspects; then requests of all may come."""
        for identity in list(self._servers()):
            if all(map(self._lives, indexes)):
                task = self._task("try", indexes)
                with contextlib.suppress(TimeoutError):  # the front end ended
                    await self._ask(identity, task, None)
        alive = [index for index in indexes if self._lives(index)]
        self._client.awaited.difference_update(alive)
        self._broadcast(EnginesAdmitted(alive))

    def give_up(self, index: int, reason: str) -> None:
        """This engine is not started again."""
        self._client.awaited.discard(index)
        if not self._client.engines and not self._client.awaited:
            self._client.dead = reason
        self._broadcast(EngineGivenUp(index, reason))
        self._on_end(reason)

    def _lives(self, index: int) -> bool:
        link = self._client.engines.get(index)
        return link is not None and not link.dead

    # ------------------------------------------------------------------ starting
    async def _restart(self, indexes: Sequence[int]) -> None:
        """Raises LaunchError."""
        self._obstacles.update(await self.obstacles())
        if self._obstacles:
            raise LaunchError(", ".join(sorted(self._obstacles)))
        await self._engines.restart(indexes)

    async def obstacles(self) -> set[str]:
        """By what engines differ from ones just started."""
        answers = await self._ask_all("check", (), ANSWER_TIMEOUT_S)
        return {each for answer in answers for each in answer.obstacles}

    async def _connect_all(self, fleet: EngineFleet, indexes: Sequence[int]) -> None:
        """Raises EngineDeadError if one of the engines died meanwhile."""
        servers = self._servers().items()
        if self._client.newcomers.keys() & indexes:  # all front ends get them, or none does
            connects = [self._connect(*server, fleet, indexes) for server in servers]
            try:
                for answer in await asyncio.gather(*connects):
                    check_unchanged(answer.obstacles)
            except TimeoutError as error:
                raise LaunchError(
                    f"an API server is not connected to engines {list(indexes)}: {str(error) or 'no answer in time'}"
                ) from None
            return
        await asyncio.gather(*(self._use(*server, fleet, indexes) for server in servers))

    async def catch_up(self, identity: bytes, index: int, epochs: Mapping[int, int]) -> None:
        """A front end serves now. Connect it to engines that were started after it was told of these."""
        async with self.lock:
            missing = [
                link.index
                for link in self._client.engines.values()
                if epochs.get(link.index) != link.epoch and not link.dead
            ]
            with contextlib.suppress(EngineDeadError):  # another recovery follows
                if missing:
                    await self._use(identity, index, self._engines.fleet, missing)
                    self._send(identity, EnginesAdmitted(missing))

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
                "API server %d goes on without engines %s: %s",
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

    # ------------------------------------------------------------------ replacing
    def _take_over(self, indexes: Sequence[int], coordinator: CoordinatorFacts | None) -> None:
        self._client.take_over(indexes, coordinator)
        self._coordinator = coordinator

    async def _switch_all(self, indexes: Sequence[int]) -> None:
        """Return when every front end uses these engines, or has ended; the ones before are there until then."""
        await self._ask_all("switch", indexes, None, coordinator=self._coordinator)
        await self.admit(indexes)

    def _drop(self, indexes: Sequence[int]) -> None:
        self._broadcast(self._task("drop", indexes))

    # ------------------------------------------------------------------ front ends
    def _task(self, step: Any, indexes: Sequence[int], **fields: Any) -> RecoveryTask:
        return RecoveryTask(next(self._numbers), step, list(indexes), **fields)

    async def _ask_all(
        self,
        step: str,
        indexes: Sequence[int],
        timeout: float | None,  # noqa: ASYNC109 - as below
        **fields: Any,
    ) -> list[TaskDone]:
        """The answers of those that answer in time."""
        asked = [
            self._ask(identity, self._task(step, indexes, **fields), timeout)
            for identity in self._servers()
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return [answer for answer in answers if isinstance(answer, TaskDone)]

    async def _ask(
        self,
        identity: bytes,
        task: RecoveryTask,
        timeout: float | None,  # noqa: ASYNC109 - for the answer of another process
    ) -> TaskDone:
        """Raises TimeoutError, also for a front end that ends meanwhile."""
        future: asyncio.Future[TaskDone] = asyncio.get_running_loop().create_future()
        self._asked[task.number] = (identity, future)
        self._send(identity, task)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._asked[task.number]

    def done(self, answer: TaskDone) -> None:
        """A front end answers."""
        _, future = self._asked.get(answer.number, (b"", None))
        if future is not None and not future.done():
            future.set_result(answer)

    def left(self, identity: bytes) -> None:
        """A front end ended: it does not answer any more."""
        for asked, future in self._asked.values():
            if asked == identity and not future.done():
                future.set_exception(TimeoutError("it ended"))

    def _broadcast(self, message: Any) -> None:
        for identity in self._servers():
            self._send(identity, message)
