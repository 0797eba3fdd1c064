"""Attaches the observers of a start to an engine's scheduler. Engine process."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError
from tenonry.info import PluginRecord
from tenonry.interfaces.call_set import Engine
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry_decisions.frames import LIVE, SHADOW, Header
from tenonry_decisions.observed import ObservedScheduler, SchedulerObserver, logger
from tenonry_decisions.recorder import Recorder, Sink
from tenonry_decisions.settings import DecisionSettings
from tenonry_decisions.shadow import Shadow, build_candidate, candidate_config
from tenonry_decisions.sinks import EngineLog, MemorySink

RUN_BITS = 64


class EngineRecords:
    """Sinks of one engine start, and the recorders that fill them."""

    def __init__(self, settings: DecisionSettings, engine: Engine) -> None:
        self.run = secrets.randbits(RUN_BITS)
        self._engine = engine
        self._log = settings.decision_log
        self._memory = MemorySink(settings.decision_steps) if settings.decision_steps else None
        self._recorders: list[Recorder] = []
        self._observed: list[ObservedScheduler] = []

    def recorder(self, header: Header, scheduler: Scheduler) -> Recorder:
        """An observer that records into the sinks."""
        sinks: list[Sink] = []
        if self._log is not None:
            sinks.append(EngineLog(self._log, header, lambda: self._engine.index).write)
        if self._memory is not None:
            self._memory.begin(header)
            sinks.append(self._memory.write)
        recorder = Recorder(header, scheduler, sinks)
        self._recorders.append(recorder)
        return recorder

    def observe(
        self, scheduler: Scheduler, observers: Iterable[SchedulerObserver]
    ) -> ObservedScheduler:
        """Stand-in for `scheduler` whose calls the observers follow."""
        observed = ObservedScheduler(scheduler, observers)
        self._observed.append(observed)
        return observed

    def frames(self) -> bytes:
        """The records in memory, up to the latest step."""
        for observed in self._observed:
            observed.pass_on()
        for recorder in self._recorders:
            recorder.flush()
            # A standby gets its index when it takes over.
            recorder.header.engine = self._engine.index
        return b"" if self._memory is None else self._memory.frames()


def attach(engine: Engine, config: EngineConfig, settings: DecisionSettings) -> EngineRecords:
    """Observe the engine's scheduler from now on. Raises ConfigError for a file that cannot be written."""
    records = EngineRecords(settings, engine)
    scheduler: Scheduler = engine.scheduler
    if getattr(scheduler, "context", None) is None:
        raise ConfigError(
            f"{engine.plan.get('scheduler').label()} keeps no context, so its decisions cannot be recorded; call "
            "super().__init__(context) in its constructor"
        )
    header = make_header(
        scheduler.context, engine.plan.get("scheduler"), LIVE, policy_of(config), run=records.run
    )
    observers: list[SchedulerObserver] = [records.recorder(header, scheduler)]
    if settings.has_shadow:
        try:
            observers.append(_shadow(scheduler.context, config, settings, records))
        except Exception as error:  # noqa: BLE001 - the live scheduler continues without its shadow
            logger.error("disabled the shadow scheduler: %s", error)
    engine.scheduler = records.observe(scheduler, observers)
    return records


def _shadow(
    context: SchedulerContext,
    config: EngineConfig,
    settings: DecisionSettings,
    records: EngineRecords,
) -> Shadow:
    own, choice = candidate_config(config, settings)
    candidate, plugin = build_candidate(own, choice, context)
    header = make_header(candidate.context, plugin, SHADOW, policy_of(own), run=records.run)
    observed = records.observe(candidate, [records.recorder(header, candidate)])
    return Shadow(observed, plugin.name, context.max_model_len)


def policy_of(config: EngineConfig) -> str:
    """Name of the scheduling policy, "" without one."""
    choice = getattr(config, "scheduling_policy", None)
    return PluginChoice.model_validate(choice).name if choice else ""


def make_header(
    context: SchedulerContext,
    plugin: PluginRecord,
    source: str,
    policy: str = "",
    clock: Callable[[], float] = time.time,
    run: int = 0,
) -> Header:
    """The header of a scheduler's records. `clock`: Unix time."""
    config, kv_cache = context.config, context.kv_cache
    return Header(
        run=run,
        source=source,
        engine=context.engine_index,
        scheduler=plugin.name,
        origin=f"{plugin.distribution} {plugin.version}".strip() or plugin.path,
        policy=policy,
        started_at=clock(),
        clock=context.clock(),
        max_num_seqs=config.max_num_seqs,
        token_budget=config.step_token_budget,
        max_model_len=context.max_model_len,
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        num_state_slots=kv_cache.num_state_slots,
        groups=kv_cache.groups,
        chunked_prefill=config.enable_chunked_prefill,
        prefix_caching=config.enable_prefix_caching,
        max_concurrent_steps=context.max_concurrent_steps,
    )
