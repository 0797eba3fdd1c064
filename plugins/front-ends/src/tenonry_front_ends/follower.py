"""What a front end does when an engine that it shares comes back. Front end, event loop.

Its supervisor starts the engine and says what comes next: bind for it, wait until it is connected, try suspects, go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from tenonry.client.core_client import CoreClient
from tenonry.continuity.recovery import Recovery
from tenonry.errors import TenonryError
from tenonry_front_ends.messages import RecoveryTask, TaskDone

logger = logging.getLogger("tenonry.front_ends")
POLL_S = 0.005


class Follower:
    """`recovery`: of the requests of this front end; `changes`: by what engines differ from ones just started.
    `on_join` is awaited before an engine gets requests; `answer` sends to the supervisor.
    """

    def __init__(
        self,
        client: CoreClient,
        recovery: Recovery,
        changes: Collection[str],
        on_join: Callable[[], Awaitable[None]],
        answer: Callable[[TaskDone], None],
    ) -> None:
        self._client = client
        self.recovery = recovery
        self._changes = changes
        self._on_join = on_join
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, task: RecoveryTask) -> None:
        """The supervisor asks for a part of a recovery, and waits for the answer."""
        running = asyncio.ensure_future(self._run(task))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _run(self, task: RecoveryTask) -> None:
        addresses: Sequence[str] = ()
        try:
            match task.step:
                case "bind":
                    addresses = await self._bind(task)
                case "connect":
                    await self._connect(task.indexes)
                case "try":
                    await self.recovery.try_suspects(task.indexes)
        except TenonryError as error:  # the engine died again, or this front end ends
            logger.warning("engines %s: %s failed: %s", task.indexes, task.step, error)
        self._answer(TaskDone(task.number, sorted(self._changes), list(addresses)))

    async def _bind(self, task: RecoveryTask) -> Sequence[str]:
        while self._client.engines.keys() & set(task.indexes):  # noqa: ASYNC110 - the dead ones leave first
            await asyncio.sleep(POLL_S)
        addresses = self._client.bind(task.input_address, task.output_address)
        self._client.leaving.update(task.indexes)  # until they are connected
        self._client.add_engines(task.engines, task.coordinator)
        return addresses

    async def _connect(self, indexes: Sequence[int]) -> None:
        while self._client.unconnected() & self._alive(indexes):  # noqa: ASYNC110 - sockets raise no event for it
            await asyncio.sleep(POLL_S)
        await self._on_join()
        self._client.leaving.difference_update(indexes)

    def _alive(self, indexes: Sequence[int]) -> set[int]:
        engines = self._client.engines
        return {index for index in indexes if index in engines and not engines[index].dead}
