"""A scheduler whose calls observers follow. Engine process.

Calls, results and exceptions are those of the scheduler; observers are notified afterwards. They receive requests,
endings and the scheduler itself, whereas the kernel's step observers receive the input of workers. An observer that
raises is disabled with one line in the log, without effect on the scheduler and the other observers.

Several steps are passed on together, unless an observer needs each immediately: between steps the code and the data of
an observer leave the processor's caches, and the same work in one loop takes a fraction of the time.
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
MAX_EVENTS = 16
MAX_DELAY_S = 0.25
UNKNOWN = -1

Event = tuple[Any, ...]  # name of a method of an observer, and its arguments


class SchedulerObserver(Protocol):
    """Follows the calls of a scheduler, in order. Contract:
    - It changes nothing that it is given: requests, steps and outputs belong to the engine.
    - It may keep a step and the arrays of outputs; the engine writes into neither afterwards.
    - `added` follows an accepted request, `scheduled` each step, `updated` each result, `ended` an end from outside.
      `now`: the scheduler's clock at the call, seconds. `key` of the request then. `free_blocks` after the step, −1 if
      the scheduler has no count. `held`: by handle, the plugin that delayed a request in this step.
    - It receives calls late, but for the last live request's end; at once if it `is_immediate`.
    """

    name: str
    is_immediate: bool

    def added(self, request: Request, now: float, key: object) -> None: ...

    def scheduled(
        self, output: SchedulerOutput, now: float, free_blocks: int, held: dict[int, str]
    ) -> None: ...

    def updated(self, outputs_by_client: OutputsByClient) -> None: ...

    def ended(self, requests: list[Request], reason: FinishReason) -> None: ...

    def shutdown(self) -> None: ...


class ObservedScheduler(Scheduler):
    """Stands in for `scheduler`; whatever this class does not define is the scheduler's own."""

    def __init__(self, scheduler: Scheduler, observers: Iterable[SchedulerObserver]) -> None:
        # Not the base class's constructor: this is no separate plugin.
        self.context = scheduler.context
        self.starvation_free = scheduler.starvation_free  # type: ignore[misc]
        self._scheduler = scheduler
        self._blocks = getattr(scheduler, "blocks", None)
        self._clock = scheduler.context.clock
        self._observers = tuple(observers)
        is_immediate = any(each.is_immediate for each in self._observers)
        self._max_events = 1 if is_immediate else MAX_EVENTS
        self._events: list[Event] = []
        self._num_live = 0
        self._passed_on = self._clock()
        # Called every step and not observed: no call in between.
        self.has_requests = scheduler.has_requests  # type: ignore[method-assign]
        self.get_request_counts = scheduler.get_request_counts  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    # ------------------------------------------------------------------ events
    def _note(self, *event: Any) -> None:
        self._events.append(event)
        if len(self._events) >= self._max_events or self._num_live <= 0:
            self.pass_on()  # an idle engine has no later step

    def pass_on(self) -> None:
        """Notify the observers of all calls so far."""
        events, self._events = self._events, []
        for observer in self._observers:
            call = ""
            try:
                for call, *args in events:
                    getattr(observer, call)(*args)
            except Exception as error:  # noqa: BLE001 - it is named in the log
                self._drop(observer, call, error)

    def _drop(self, observer: SchedulerObserver, call: str, error: Exception) -> None:
        self._observers = tuple(each for each in self._observers if each is not observer)
        logger.error(
            "disabled %s: %s raised %s: %s", observer.name, call, type(error).__name__, error
        )

    # ------------------------------------------------------------------ observed calls
    def add_request(self, request: Request) -> None:
        self._scheduler.add_request(request)
        self._num_live += 1
        self._note("added", request, self._clock(), request.key)

    def schedule(self) -> SchedulerOutput:
        output = self._scheduler.schedule()
        now = self._clock()
        free = getattr(self._blocks, "num_free", UNKNOWN)
        held = getattr(self._scheduler, "held", None)
        self._note("scheduled", output, now, free, dict(held) if held else {})
        if now - self._passed_on > MAX_DELAY_S:
            self._passed_on = now
            self.pass_on()
        return output

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> OutputsByClient:
        outputs_by_client = self._scheduler.update_from_output(output, result)
        for outputs in outputs_by_client.values():
            self._num_live -= len(outputs.finished)
        self._note("updated", outputs_by_client)
        return outputs_by_client

    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        finished = self._scheduler.finish_requests(handles, reason)
        self._num_live -= len(finished)
        self._note("ended", finished, reason)
        return finished

    # ------------------------------------------------------------------ the scheduler's own
    def has_requests(self) -> bool:
        return self._scheduler.has_requests()

    def get_request_counts(self) -> tuple[int, int]:
        return self._scheduler.get_request_counts()

    def make_stats(self) -> SchedulerStats:
        return self._scheduler.make_stats()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self._scheduler.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        self._events.append(("shutdown",))
        self.pass_on()
        self._scheduler.shutdown()
