"""How engines that several front ends share come back after a death. The supervisor's process, its event loop.

The supervisor starts an engine again, and connects it to every front end. Each has its turn to try its suspects in it,
while the others wait, and then all send what waits for it.
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
from tenonry_front_ends.messages import (
    EngineGivenUp,
    EnginesAdmitted,
    RecoveryTask,
    SupervisorMessage,
    TaskDone,
)

logger = logging.getLogger("tenonry.front_ends")
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
        self._starting: Sequence[int] = ()
        self._obstacles: set[str] = set()
        self.lock = asyncio.Lock()
        engines.on_join = self._connect_all
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

    def has(self, index: int) -> bool:
        """Whether this engine is there."""
        return index in self._client.engines

    async def admit(self, indexes: Sequence[int]) -> None:
        """One front end after the other tries its suspects; then requests of all may come."""
        for identity in list(self._servers()):
            if all(map(self._lives, indexes)):
                task = RecoveryTask(next(self._numbers), "try", list(indexes))
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
        tasks = [
            self._ask(identity, RecoveryTask(next(self._numbers), "check"), ANSWER_TIMEOUT_S)
            for identity in self._servers()
        ]
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(answer, TaskDone):
                self._obstacles.update(answer.obstacles)
        if self._obstacles:
            raise LaunchError(", ".join(sorted(self._obstacles)))
        self._starting = indexes
        await self._engines.restart(indexes)

    async def _connect_all(self) -> None:
        """Raises EngineDeadError if one of the engines died meanwhile."""
        servers = self._servers().items()
        connects = [self._connect(*server, self._starting) for server in servers]
        await asyncio.gather(*connects)

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
                    await self._connect(identity, index, missing)
                    self._send(identity, EnginesAdmitted(missing))

    async def _connect(self, identity: bytes, server: int, indexes: Sequence[int]) -> None:
        """Let engines connect to one front end. One that does not answer goes without them."""
        fleet = self._engines.fleet
        with contextlib.closing(fleet.run_directory()) as directory:
            bind = RecoveryTask(
                next(self._numbers),
                "bind",
                list(indexes),
                [fleet.engines[index] for index in indexes if index in fleet.engines],
                self._engines.pids(),
                fleet.address(directory),
                fleet.address(directory),
                fleet.coordinator,
            )
            connect = RecoveryTask(next(self._numbers), "connect", list(indexes))
            try:
                bound = await self._ask(identity, bind, ANSWER_TIMEOUT_S)
                for index in indexes:
                    await self._client.call_engine(index, "attach_client", server, *bound.addresses)
                await self._ask(identity, connect, ANSWER_TIMEOUT_S)
            except (TimeoutError, EngineGenerateError) as error:
                logger.error(  # noqa: TRY400 - the message names the cause
                    "API server %d goes on without engines %s: %s",
                    server,
                    list(indexes),
                    str(error) or f"no answer within {ANSWER_TIMEOUT_S:g} s",
                )

    # ------------------------------------------------------------------ front ends
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
