"""A candidate scheduler beside the live one: it sees the same requests, and its decisions are recorded. Engine process.

The candidate decides one step for each step of the live scheduler, and finishes what is left when that has no request.
Its requests get tokens that mean nothing, and end with as many as the live ones got: later than these if it is slower,
and never before them, because their lengths are not known yet. An abort ends both. It runs in the live engine's process
and takes that engine's time. It has one step in flight and no KV connector.

Whatever the candidate raises ends the shadow alone: the observed scheduler disables it with one line in the log.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import RequestError
from tenonry.info import PluginRecord
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.messages import OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import PluginManager, blamed
from tenonry.plugin.plan import load_class
from tenonry.request import Request
from tenonry.step import SchedulerOutput
from tenonry_decisions.settings import DecisionSettings
from tenonry_decisions.virtual import VirtualEngine

MAX_DRAINED_STEPS = 256  # of the candidate, when the live scheduler has no request left


def candidate_config(
    config: EngineConfig, settings: DecisionSettings
) -> tuple[EngineConfig, PluginChoice]:
    """The configuration of the shadow, and the choice of its scheduler."""
    if settings.shadow_policy:
        config = config.replaced(scheduling_policy=settings.shadow_policy)
    return config, settings.shadow_scheduler or config.scheduler


def check_candidate(config: EngineConfig, settings: DecisionSettings) -> None:
    """Raises PluginError or ConfigError for a candidate that cannot work."""
    config, choice = candidate_config(config, settings)
    PluginManager(config.plugins).resolve("scheduler", choice, config)


def build_candidate(
    config: EngineConfig, choice: PluginChoice, context: SchedulerContext
) -> tuple[Scheduler, PluginRecord]:
    """Another scheduler with the context of the live one, without what it must not share. Raises PluginError."""
    record = PluginManager(config.plugins).resolve("scheduler", choice, config)
    found = load_class(record)
    own = dataclasses.replace(
        context,
        config=config,
        options=load_options(record, found),
        plugin_name=record.name,
        kv_connector=None,
        max_concurrent_steps=1,
        max_round_tokens=1,
    )
    with blamed(record, "its constructor"):
        scheduler: Scheduler = found(own)
    return scheduler, record


class Shadow:
    """Observer of the live scheduler that drives the candidate."""

    is_immediate = True  # the candidate decides by the time of the step

    def __init__(self, scheduler: Scheduler, name: str, max_model_len: int) -> None:
        self.name = f"shadow scheduler '{name}'"
        self._scheduler = scheduler
        self._engine = VirtualEngine(scheduler, max_model_len)
        self._counts: dict[int, int] = {}  # tokens of live requests

    def added(self, request: Request, now: float, key: object) -> None:
        self._counts[request.handle] = 0
        try:
            self._engine.add(request.source, request.arrival_time)
        except RequestError:
            self._counts.pop(request.handle)  # rejected by the candidate

    def scheduled(
        self, output: SchedulerOutput, now: float, free_blocks: int, held: dict[int, str]
    ) -> None:
        self._engine.step()

    def updated(self, outputs_by_client: OutputsByClient) -> None:
        counts = self._counts
        for outputs in outputs_by_client.values():
            for handle, number in _tokens(outputs):
                if handle in counts:
                    counts[handle] += number
            for finished in outputs.finished:
                if finished.handle in counts:
                    self._engine.end(finished.handle, counts.pop(finished.handle))
        if not counts:
            self._drain()

    def ended(self, requests: list[Request], reason: FinishReason) -> None:
        for request in requests:
            if self._counts.pop(request.handle, None) is not None:
                self._engine.end(request.handle)

    def _drain(self) -> None:
        """Step the candidate to its end while the live scheduler is idle."""
        for _ in range(MAX_DRAINED_STEPS):
            if not self._engine.num_outputs or not len(self._engine.step().row):
                return

    def shutdown(self) -> None:
        self._scheduler.shutdown()


def _tokens(outputs: Any) -> list[tuple[int, int]]:
    """Handles with their numbers of tokens."""
    offsets = outputs.offsets.tolist()
    handles = outputs.handles.tolist()
    if not offsets:
        return [(handle, 1) for handle in handles]
    return [(handle, offsets[i + 1] - offsets[i]) for i, handle in enumerate(handles)]
