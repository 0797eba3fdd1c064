"""Listener of `Engines`: reactions of a front end to deaths, joins and replacements. Front end."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tenonry.client.call_sets import CallSets
from tenonry.client.codec import EngineLink
from tenonry.client.engine_calls import EngineCalls
from tenonry.client.output_handler import OutputHandler
from tenonry.client.stream import Completion
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError
from tenonry.interfaces.call_set import CallSet, FrontEnd, FrontEndHalf
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineEvents, EngineRecovery, RecoveryContext
from tenonry.messages import CoordinatorFacts, EngineCoreRequest
from tenonry.plugin.manager import build_plugin
from tenonry.stats import SchedulerStats

logger = logging.getLogger(__name__)
DRAIN_GRACE_S = 0.05  # for outputs of a dead engine that are still in the socket


class EngineListener(EngineEvents):
    """Removes dead engines and passes them and their requests to the recovery, which has access to the open streams.
    The call sets bring joining engines up to date.
    """

    def __init__(
        self,
        llm: Any,
        config: EngineConfig,
        handler: OutputHandler,
        io_processor: IOProcessor | None,
    ) -> None:
        engines = handler.engines
        self._llm = weakref.proxy(llm)
        self._client = engines.client
        self._stats = engines.stats
        self._outputs = handler.outputs
        self._handler = handler
        self._admission = handler.admission
        self._io_processor = io_processor
        context = RecoveryContext(config, engines=engines, events=self, streams=self)
        self.lock = context.lock
        self.recovery: EngineRecovery = build_plugin(engines.plan.get("engine_recovery"), context)
        handler.post(0.0, self.recovery.listen)
        self.calls = CallSets(config, engines.plan, self._front_end_half)

    def _front_end_half(self, name: str, call_set: CallSet, divergence: set[str]) -> FrontEndHalf:
        calls = EngineCalls(self._client, self._handler, self.recovery, f"{name}.")
        return call_set.front_end_half(FrontEnd(self._llm, calls, self._stats.submit, divergence))

    # ------------------------------------------------------------------ deaths
    def on_death(self, index: int, death: Death) -> None:
        """Resume or end its streams, after its last outputs have arrived."""
        link = self._client.engines.get(index)
        if link is not None:
            logger.error("the engine failed: %s", death)
        self._client.engine_died(index, death)
        self._handler.post(DRAIN_GRACE_S, self._remove, link, index, death)

    def _remove(self, link: EngineLink | None, index: int, death: Death) -> None:
        if self._client.engines.get(index) is not link:  # its index already has another engine
            return
        self._client.abort_requests(self._handler.settle())
        requests = self._client.remove_engine(index, str(death))
        taken: Collection[int] = ()
        if not self._handler.stopped:
            taken = self._decide(self.recovery.on_death, index, death, requests)
        if self._client.dead is not None:
            self._handler.stop(EngineDeadError(f"the engine died: {death}"))
        self._end(requests, taken, f"the engine of this request died: {death}")
        if link is not None:
            # No later frame will report its numbers, or that it runs no request.
            self._stats.observe(index, SchedulerStats(), self._outputs.take_iteration(index))

    def _decide(self, decide: Callable[..., Collection[int]], *args: Any) -> Collection[int]:
        try:
            return set(decide(*args) or ())
        except Exception:
            logger.exception("the engine recovery failed")
            return ()

    def _end(self, requests: Iterable[int], taken: Collection[int], why: str) -> None:
        """End the requests that the recovery did not resume."""
        left = [handle for handle in requests if handle not in taken]
        self.fail(left, EngineDeadError(why))

    def on_given_up(self, index: int, reason: str) -> None:
        """End everything with the last engine."""
        client = self._client
        logger.error("engine failed permanently: %s", reason)
        client.awaited.discard(index)
        if not client.engines and not client.awaited:
            client.dead = reason
            self._handler.stop(EngineDeadError(f"the engine died: {reason}"))
        if client.dead is None:
            self.recovery.on_given_up(index, reason)

    # ------------------------------------------------------------------ newcomers
    async def on_join(self, fleet: Any, indexes: Sequence[int]) -> None:
        await self.calls.on_join(indexes)

    def on_switch(self, indexes: Sequence[int], coordinator: CoordinatorFacts | None) -> None:
        for index in indexes:
            link = self._client.engines.get(index)
            if link is not None and link.dead:  # it restarted within DRAIN_GRACE_S
                self._remove(link, index, link.dead)
        self._client.abort_requests(self._handler.settle())
        for index, requests in self._client.take_over(indexes, coordinator).items():
            taken = self._decide(self.recovery.on_moved, index, requests)
            self._end(requests, taken, "the engine of this request was replaced")

    async def on_started(self, indexes: Sequence[int]) -> None:
        await self.recovery.on_started(indexes)

    def on_admitted(self, indexes: Sequence[int]) -> None:
        """Send requests to those engines that are still alive."""
        for index in indexes:
            link = self._client.engines.get(index)
            if link is not None and not link.dead:
                self._client.awaited.discard(index)
        self.recovery.on_admitted(indexes)

    # ------------------------------------------------------------------ facts
    def on_change(self, config: EngineConfig) -> None:
        self._admission.config = config
        self.recovery.on_change(config)

    async def drained(self, patience_s: float) -> int:
        await self._admission.wait_until_empty(patience_s)
        return len(self._outputs)

    def forget_media(self) -> None:
        if self._io_processor is not None:
            self._io_processor.reset_mm_cache()
        self._client.codec.forget()

    async def divergence(self) -> Collection[str]:
        return self.calls.divergence

    # ------------------------------------------------------------------ open requests, for the recovery
    def completion(self, handle: int) -> Completion | None:
        return self._outputs.completion(handle)

    def is_open(self, request_id: str) -> bool:
        return self._outputs.get(request_id) is not None

    def send(self, requests: Sequence[EngineCoreRequest]) -> None:
        try:
            self.send_to(self._client.choose(requests[0]), requests)
        except (EngineDeadError, EngineGenerateError, RequestError) as error:
            self.fail([request.handle for request in requests], error)

    def send_to(self, index: int | None, requests: Sequence[EngineCoreRequest]) -> None:
        """As `CoreClient.send_requests`; without an engine the recovery keeps the requests."""
        if index is None:
            self.recovery.hold(requests)
        else:
            self._client.send_requests(index, requests)

    def fail(self, handles: Iterable[int], error: Exception) -> None:
        ended = list(handles)
        self._client.abort_requests([*ended, *self._outputs.fail(ended, error)])
