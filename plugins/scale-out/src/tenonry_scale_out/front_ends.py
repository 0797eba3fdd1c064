"""Questions of a supervisor to its front ends, and of a front end to the others. The supervisor's event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tenonry.errors import TenonryError
from tenonry_scale_out.messages import (
    FrontEndAnswer,
    FrontEndQuestion,
    FrontEndTask,
    SupervisorMessage,
    TaskDone,
)

ANSWER_TIMEOUT_S = 10.0


class FrontEnds:
    """The front ends that serve. `servers()`: identity → index; `send(identity, message)` to one of them."""

    def __init__(
        self,
        servers: Callable[[], Mapping[bytes, int]],
        send: Callable[[bytes, SupervisorMessage], None],
    ) -> None:
        self.serving = servers
        self.send = send
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[bytes, asyncio.Future[TaskDone]]] = {}

    def task(self, step: Any, indexes: Sequence[int] = (), **fields: Any) -> FrontEndTask:
        """Return a new task, for one front end or for all."""
        return FrontEndTask(next(self._numbers), step, list(indexes), **fields)

    async def ask(
        self,
        identity: bytes,
        task: FrontEndTask,
        timeout: float | None,  # noqa: ASYNC109 - for the answer of another process
    ) -> TaskDone:
        """Send a task and wait. Raises TimeoutError, also for a front end that ends in the interval."""
        future: asyncio.Future[TaskDone] = asyncio.get_running_loop().create_future()
        self._asked[task.number] = (identity, future)
        self.send(identity, task)
        try:
            async with asyncio.timeout(timeout):
                return await future
        finally:
            del self._asked[task.number]

    async def ask_all(
        self,
        step: str,
        timeout: float | None,  # noqa: ASYNC109 - as above
        *,
        indexes: Sequence[int] = (),
        but: bytes = b"",
        **fields: Any,
    ) -> dict[bytes, TaskDone]:
        """Responses received in time, by identity; `but` is excluded."""
        identities = [identity for identity in self.serving() if identity != but]
        asked = [
            self.ask(identity, self.task(step, indexes, **fields), timeout)
            for identity in identities
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return {
            identity: answer
            for identity, answer in zip(identities, answers, strict=True)
            if isinstance(answer, TaskDone)
        }

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

    def broadcast(self, message: Any) -> None:
        """Send a message to all."""
        for identity in self.serving():
            self.send(identity, message)

    async def answer(self, asker: bytes, question: FrontEndQuestion) -> None:
        """Ask the other front ends for one of them."""
        answer = FrontEndAnswer(question.call_id)
        try:
            patience_s = question.patience_s
            answer.num_requests = await self.total(question.step, patience_s, but=asker)
        except TenonryError as error:
            answer.error = str(error)
        self.send(asker, answer)

    async def total(
        self, step: str, patience_s: float = 0.0, *, indexes: Sequence[int] = (), but: bytes = b""
    ) -> int:
        """Ask all but one; returns the requests that they count. Raises TenonryError that names those which do not
        answer, unless they ended. `patience_s`: seconds that they may wait for an event before they answer.
        """
        limit_s = ANSWER_TIMEOUT_S + patience_s
        answers = await self.ask_all(step, limit_s, indexes=indexes, but=but, patience_s=patience_s)
        silent = [
            str(index)
            for identity, index in self.serving().items()
            if identity not in {but, *answers}
        ]
        if silent:
            raise TenonryError(
                f"API server {', '.join(silent)} did not answer within {limit_s:g} s"
            )
        return sum(answer.num_requests for answer in answers.values())
