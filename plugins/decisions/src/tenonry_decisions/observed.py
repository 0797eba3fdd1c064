"""A scheduler whose calls observers follow. Engine process.

Calls, results and exceptions are those of the scheduler; observers are notified afterwards. They receive requests,
endings and the scheduler itself, whereas the kernel's step observers receive the input of workers. An observer that
raises is disabled with one line in the log, without effect on the scheduler and the other observers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from tenonry.interfaces.scheduler import Scheduler
from tenonry.messages import OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.stats import SchedulerStats
from tenonry.step import ModelRunnerOutput, SchedulerOutput

logger = logging.getLogger("tenonry.decisions")


class SchedulerObserver(Protocol):
    """Follows the calls of a scheduler. Contract:
    - It changes nothing that it is given: requests, steps and outputs belong to the engine.
    - It may keep a step and the arrays of outputs; the engine writes into neither afterwards.
    - `added` follows an accepted request, `scheduled` each step, `updated` each result, `ended` an end from outside.
    """

    name: str

    def added(self, request: Request) -> None: ...

    def scheduled(self, output: SchedulerOutput) -> None: ...

    def updated(self, outputs_by_client: OutputsByClient) -> None: ...

    def ended(self, requests: list[Request], reason: FinishReason) -> None: ...

    def shutdown(self) -> None: ...


class ObservedScheduler(Scheduler):
    """Stands in for `scheduler`; whatever this class does not define is the scheduler's own."""

    def __init__(self, scheduler: Scheduler, observers: Iterable[SchedulerObserver]) -> None:
        # Not the base class's constructor: this is no separate plugin.
        self.context = getattr(scheduler, "context", None)  # type: ignore[assignment]
        self.starvation_free = scheduler.starvation_free  # type: ignore[misc]
        self._scheduler = scheduler
        self._observers = tuple(observers)
        # Called every step and not observed: no call in between.
        self.has_requests = scheduler.has_requests  # type: ignore[method-assign]
        self.get_request_counts = scheduler.get_request_counts  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def _drop(self, observer: SchedulerObserver, call: str, error: Exception) -> None:
        self._observers = tuple(each for each in self._observers if each is not observer)
        logger.error(
            "disabled %s: %s raised %s: %s", observer.name, call, type(error).__name__, error
        )

    def add_request(self, request: Request) -> None:
        self._scheduler.add_request(request)
        for observer in self._observers:
            try:
                observer.added(request)
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, "added", error)

    def schedule(self) -> SchedulerOutput:
        output = self._scheduler.schedule()
        for observer in self._observers:
            try:
                observer.scheduled(output)
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, "scheduled", error)
        return output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> OutputsByClient:
        outputs_by_client = self._scheduler.update_from_output(output, result)
        for observer in self._observers:
            try:
                observer.updated(outputs_by_client)
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, "updated", error)
        return outputs_by_client

    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        finished = self._scheduler.finish_requests(handles, reason)
        for observer in self._observers:
            try:
                observer.ended(finished, reason)
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, "ended", error)
        return finished

    def has_requests(self) -> bool:
        return self._scheduler.has_requests()

    def get_request_counts(self) -> tuple[int, int]:
        return self._scheduler.get_request_counts()

    def make_stats(self) -> SchedulerStats:
        return self._scheduler.make_stats()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self._scheduler.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        for observer in self._observers:
            try:
                observer.shutdown()
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, "shutdown", error)
        self._scheduler.shutdown()
