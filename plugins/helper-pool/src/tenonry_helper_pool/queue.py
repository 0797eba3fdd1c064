"""The fair queue: which waiting job is next. Pure; its owner holds a lock.

Between clients it is start-time fair queueing: each client has a virtual time, the seconds that its jobs have used, and
the one that used the least is next. A client that comes back after a pause starts at the least of those present, so
that a pause earns no credit. (Goyal, Vin, Cheng: Start-time fair queueing, 1996.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MAX_PASSED = 8  # jobs of its client in front of the oldest one
SHORT_S = 0.1  # charged for a job that starts, until its time is known
LONG_S = 1.0


@dataclass(eq=False, slots=True)
class Job:
    """One piece of work. `cost`: its estimated size, in any unit. `is_long`: it may not take the last slot."""

    client: str
    cost: int
    is_long: bool = False
    number: int = 0
    charged_s: float = 0.0


JobType = TypeVar("JobType", bound=Job)


@dataclass(slots=True)
class _Client(Generic[JobType]):
    used_s: float
    waiting: list[JobType] = field(default_factory=list)
    num_running: int = 0
    passed: int = 0  # jobs taken since the oldest one came first


class FairQueue(Generic[JobType]):
    """Waiting jobs of all clients. `len`: how many wait."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client[JobType]] = {}
        self._num_waiting = 0
        self._count = 0

    def __len__(self) -> int:
        return self._num_waiting

    def size_of(self, client: str) -> int:
        """Jobs of a client, waiting and running."""
        found = self._clients.get(client)
        return len(found.waiting) + found.num_running if found else 0

    def running_of(self, client: str) -> int:
        """Jobs of a client that run."""
        found = self._clients.get(client)
        return found.num_running if found else 0

    def push(self, job: JobType) -> None:
        """Add a job behind those of its client."""
        if job.client not in self._clients:
            least = min((client.used_s for client in self._clients.values()), default=0.0)
            self._clients[job.client] = _Client(least)
        self._count += 1
        job.number = job.number or self._count  # one that comes back keeps its place
        self._clients[job.client].waiting.append(job)
        self._num_waiting += 1

    def take(self, accepts: Callable[[JobType], bool]) -> JobType | None:
        """Remove the next job among those that `accepts`; None if there is none. It runs until `done`."""
        found: list[tuple[float, int, _Client[JobType], JobType]] = []
        for client in self._clients.values():
            job = _next_of(client, accepts)
            if job is not None:
                found.append((client.used_s, job.number, client, job))
        if not found:
            return None
        _, _, client, job = min(found, key=lambda each: each[:2])
        is_oldest = all(job.number <= other.number for other in client.waiting)
        client.passed = 0 if is_oldest else client.passed + 1
        client.waiting.remove(job)
        client.num_running += 1
        job.charged_s = LONG_S if job.is_long else SHORT_S
        client.used_s += job.charged_s
        self._num_waiting -= 1
        return job

    def done(self, job: JobType, seconds: float) -> None:
        """Record the end of a started job, and its duration."""
        client = self._clients[job.client]
        client.used_s += seconds - job.charged_s
        client.num_running -= 1
        self._forget(job.client)

    def remove(self, job: JobType) -> bool:
        """Drop a waiting job; False for one that does not wait."""
        client = self._clients.get(job.client)
        if client is None or job not in client.waiting:
            return False
        client.waiting.remove(job)
        self._num_waiting -= 1
        self._forget(job.client)
        return True

    def _forget(self, name: str) -> None:
        client = self._clients[name]
        if not client.waiting and not client.num_running:
            del self._clients[name]


def _next_of(client: _Client[JobType], accepts: Callable[[JobType], bool]) -> JobType | None:
    """The smallest job of a client; the oldest one after `MAX_PASSED` others."""
    jobs = [job for job in client.waiting if accepts(job)]
    if not jobs:
        return None
    if client.passed >= MAX_PASSED:
        return min(jobs, key=lambda job: job.number)
    return min(jobs, key=lambda job: (job.cost, job.number))
