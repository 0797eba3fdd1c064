"""Admission of requests: queued while the front end is paused, rejected while it drains or is full."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tenonry.client.engines import Engines
from tenonry.config import EngineConfig
from tenonry.errors import DrainingError, QueueFullError, RequestError

DRAINING_RETRY_S = 5.0
MAX_WORK_PER_TURN = 256  # requests with hardly any text each
CHARS_PER_REQUEST = 292  # tokenisation time equal to all other work per request, about 0.1 ms


@dataclass(slots=True)
class Ticket:
    """Admission of one request of `count` completions, until it ends.

    `is_open`: its stream exists and the caller reads it. `is_aborted`: it ends as soon as it has a stream.
    """

    count: int
    is_open: bool = False
    is_aborted: bool = False


class Admission:
    """Counts completions of unfinished requests. `tickets`: their tickets by request id."""

    def __init__(self, config: EngineConfig, engines: Engines) -> None:
        self.config = config
        self._engines = engines
        self._stats = engines.stats
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._idle = asyncio.Event()  # set when the number of requests may have reached 0
        self._left_in_turn = MAX_WORK_PER_TURN
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._num_admitted = 0
        self.num_open = 0
        self.tickets: dict[str, Ticket] = {}
        self.is_draining = False

    # ------------------------------------------------------------------ pausing
    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    def pause(self) -> None:
        """Queue new requests until `resume`."""
        self._resumed.clear()

    def resume(self) -> None:
        """Admit queued requests. Also called after the last engine died, so that they fail."""
        self._resumed.set()
        self._idle.set()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the word that callers know
        """Reject new requests and wait for admitted ones; False if some still run after `timeout` seconds."""
        self.is_draining = True
        return await self.wait_until_empty(timeout)

    async def wait_until_empty(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - as above
        """Wait until no request runs; False if some still run after `timeout` seconds, or the engines are dead.

        While draining, unsent requests count as well.
        """
        client = self._engines.client
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while client.dead is None and (self.tickets if self.is_draining else self.num_open):
                    self._idle.clear()
                    await self._idle.wait()
                return client.dead is None
        return False

    # ------------------------------------------------------------------ admitting
    @property
    def capacity(self) -> float:
        """Maximum completions: those of all engines and `max_num_queued_reqs` more, divided among front ends."""
        queued = self.config.max_num_queued_reqs
        if queued is None:
            return math.inf
        running = self.config.max_num_seqs * len(self._engines.info.engine_indexes)
        return math.ceil((running + queued) / self._engines.count)

    @contextlib.contextmanager
    def admit(self, request_id: str, count: int) -> Iterator[Ticket]:
        """Reserve capacity for a request of `count` completions, whose stream is opened in the block, until `end`.

        Raises EngineDeadError, QueueFullError, DrainingError, or RequestError for an id in use or a count above the
        capacity. Stat loggers receive a record of each rejection, including requests found invalid here.
        """
        self._engines.client.check_alive()
        self.check_capacity(count)
        if request_id in self.tickets:
            raise self._refuse(
                "invalid",
                RequestError(
                    f"request id '{request_id}' is in use; ids of running requests must differ",
                    "request_id",
                ),
            )
        ticket = self.tickets[request_id] = Ticket(count)
        self._num_admitted += count
        try:
            yield ticket
        except BaseException as error:
            self.end(request_id)
            if isinstance(error, RequestError):
                self._refuse("invalid", error)
            raise
        ticket.is_open = True
        self.num_open += 1

    def end(self, request_id: str) -> None:
        """Release the capacity of an admitted request."""
        ticket = self.tickets.pop(request_id)
        self._num_admitted -= ticket.count
        if ticket.is_open:
            self.num_open -= 1
        if not self.num_open:
            self._idle.set()

    def check_capacity(self, count: int) -> None:
        """Raise what `admit` would raise now for `count` completions."""
        if self.is_draining:
            raise self._refuse(
                "draining",
                DrainingError(
                    "the server is shutting down and accepts no new requests",
                    retry_after_s=DRAINING_RETRY_S,
                ),
            )
        capacity = self.capacity
        if count > capacity:
            raise self._refuse(
                "invalid",
                RequestError(
                    f"n={count}: the capacity is {capacity} sequences in all; lower n", "n"
                ),
            )
        if self._num_admitted + count > capacity:
            raise self._refuse(
                "queue_full",
                QueueFullError(
                    f"{self._num_admitted} sequences run or wait, the request brings {count}, and the capacity is "
                    f"{capacity} with max_num_queued_reqs={self.config.max_num_queued_reqs}; try again later"
                ),
            )

    def _refuse(self, reason: str, error: Exception) -> Exception:
        self._stats.submit("record_rejection", reason)
        return error

    def abort(self, request_id: str) -> None:
        """End an unsent request once its stream is open; a paused front end opens the stream immediately."""
        ticket = self.tickets.get(request_id)
        if ticket and not ticket.is_open:
            ticket.is_aborted = True
            if self.is_paused:  # wake all waiters; the others wait again
                self._resumed.set()
                self._resumed.clear()

    async def wait(self, ticket: Ticket) -> None:
        """Wait until admission resumes. Re-checks, because it may have been paused again before this task runs."""
        while self.is_paused and not ticket.is_aborted:
            await self._resumed.wait()
            await self.turn(0)

    async def turn(self, num_chars: int) -> None:
        """Wait in order of arrival until the current event loop iteration has time for one more request.

        `num_chars`: characters of its text.
        """
        work = 1 + num_chars // CHARS_PER_REQUEST
        if self._left_in_turn == MAX_WORK_PER_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left_in_turn > 0:  # no other request waits
            self._left_in_turn -= work
        else:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append((place, work))
            await place

    def _next_turn(self) -> None:
        self._left_in_turn = MAX_WORK_PER_TURN
        while self._left_in_turn > 0 and self._waiting:
            place, work = self._waiting.popleft()
            if not place.done():  # cancelled
                place.set_result(None)
                self._left_in_turn -= work
        if self._left_in_turn < MAX_WORK_PER_TURN:
            asyncio.get_running_loop().call_soon(self._next_turn)
