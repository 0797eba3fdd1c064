"""A front end's part in the restart or replacement of a shared engine, and its answers to others. Front end, event
loop.

Its supervisor starts the engine and orders the steps: bind for it, wait until it is connected, use it, try suspects,
resume.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from tenonry.client.core_client import CoreClient
from tenonry.errors import TenonryError
from tenonry.interfaces.recovery import EngineEvents
from tenonry_scale_out.messages import FrontEndTask, TaskDone

logger = logging.getLogger("tenonry.scale_out")
POLL_S = 0.005
CALLS_TIMEOUT_S = 60.0


class Follower:
    """`events`: the listener of this front end; `answer` sends to the supervisor."""

    def __init__(
        self, client: CoreClient, events: EngineEvents, answer: Callable[[TaskDone], None]
    ) -> None:
        self._client = client
        self._events = events
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, task: FrontEndTask) -> None:
        """The supervisor waits for the answer."""
        running = asyncio.ensure_future(self._run(task))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _run(self, task: FrontEndTask) -> None:
        done = TaskDone(task.number)
        try:
            await self._recover(task, done)
            self._scale(task, done)
            await self._answer_others(task, done)
        except TenonryError as error:  # the engine died again, or this front end ends
            logger.warning("engines %s: %s failed: %s", task.indexes, task.step, error)
            done.error = str(error)
        self._answer(done)

    async def _recover(self, task: FrontEndTask, done: TaskDone) -> None:
        match task.step:
            case "check":
                done.obstacles = sorted(await self._events.divergence())
            case "bind":
                done.addresses = list(self._client.bind(task.input_address, task.output_address))
                self._client.expect(task.engines)
            case "connect":
                await self._connect(task.indexes)
            case "switch":
                await self._until_answered(task.indexes)
                self._events.on_switch(task.indexes, task.coordinator)
            case "drop":
                for index in task.indexes:
                    self._client.drop_newcomer(index, "it was not needed")
            case "try":
                await self._events.on_started(task.indexes)

    def _scale(self, task: FrontEndTask, done: TaskDone) -> None:
        match task.step:
            case "leave":
                self._client.leaving.update(task.indexes)
                links = map(self._client.engines.get, task.indexes)
                done.num_requests = sum(len(link.requests) for link in links if link)
            case "stay":
                self._client.leaving.difference_update(task.indexes)
            case "remove":
                for index in task.indexes:
                    self._client.remove_engine(index, "it was scaled away")

    async def _answer_others(self, task: FrontEndTask, done: TaskDone) -> None:
        match task.step:
            case "drained":
                done.num_requests = await self._events.drained(task.patience_s)
            case "forget_media":
                self._events.forget_media()

    async def _connect(self, indexes: Sequence[int]) -> None:
        newcomers = self._client.newcomers
        while self._client.unconnected().intersection(indexes, newcomers):  # noqa: ASYNC110 - sockets raise no event for it
            await asyncio.sleep(POLL_S)
        await self._until_answered(indexes)  # what they said may stand against it
        await self._events.on_join(None, indexes)

    async def _until_answered(self, indexes: Sequence[int]) -> None:
        """No call waits for an engine that is replaced; one that takes longer fails with it."""
        give_up = time.monotonic() + CALLS_TIMEOUT_S
        has_calls = self._client.has_calls
        while any(map(has_calls, indexes)) and time.monotonic() < give_up:  # noqa: ASYNC110 - as above
            await asyncio.sleep(POLL_S)
