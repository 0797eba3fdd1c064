"""Builds the parts of an engine from the plan: executor, KV cache, connector, scheduler, observers. Engine process."""

from __future__ import annotations

import dataclasses
import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterator

from tenonry.config import STEP_TOKENS, EngineConfig
from tenonry.engine.core import EngineCore, rank_plugin, shut_down
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.interfaces.step_observer import StepObserver
from tenonry.kv_cache import KVCacheConfig
from tenonry.launch.spawn import ProcessStarter
from tenonry.plugin.checks import load_options
from tenonry.plugin.kinds import STEP_OBSERVERS
from tenonry.plugin.manager import blamed, build_plugin, resolve_point
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.version import __version__

logger = logging.getLogger(__name__)
ENGINE_ID_BYTES = 8
_log_failure = functools.partial(logger.error, "the executor failed: %s")


def build_engine(
    config: EngineConfig,
    model: ModelInfo,
    plan: PluginPlan,
    *,
    engine_index: int = 0,
    on_failure: Callable[[str], None] = _log_failure,
    clock: Callable[[], float] = time.monotonic,
    starter: ProcessStarter | None = None,
) -> EngineCore:
    """Start the executor, size the KV cache, build the other parts. If a part fails, started ones are shut down.

    `on_failure(reason)` is called, from any thread, when the executor loses a rank. `starter`: creates ranks in child
    processes, None for fresh interpreters. Raises ConfigError, PluginFault, or the loading error of a worker.
    """
    logger.info(
        "engine %d of tenonry %s: %s", engine_index, __version__, config.describe(plan.secrets)
    )
    if not load_class(plan.get("executor")).is_local:
        config = _for_remote_ranks(config)
    context = _executor_context(config, model, plan, engine_index, starter)
    executor: Executor = build_plugin(plan.get("executor"), context)
    kv_connector: KVConnector | None = None
    scheduler: Scheduler | None = None
    observers: list[tuple[PluginRecord, StepObserver]] = []
    try:
        kv_cache = _start_executor(executor, plan, context, on_failure)
        if context.kv_connector is not None:
            kv_connector = build_plugin(
                context.kv_connector,
                KVConnectorContext(
                    config,
                    model,
                    KVConnectorRole.SCHEDULER,
                    engine_id=context.engine_id,
                    kv_cache=kv_cache,
                ),
            )
        shared = SchedulerContext(
            config,
            kv_cache,
            max_model_len=kv_cache.max_model_len,
            clock=clock,
            plugin_name=plan.get("scheduler").name,
            engine_index=engine_index,
            max_concurrent_steps=executor.max_concurrent_batches,
            feeds_back_tokens=executor.feeds_back_tokens,
            max_round_tokens=_max_round_tokens(context, executor),
            kv_connector=kv_connector,
            resolve=functools.partial(
                resolve_point, allow_experimental=config.allow_experimental_plugins
            ),
        )
        # Each receives a copy: a scheduler may change its context.
        scheduler = build_plugin(plan.get("scheduler"), dataclasses.replace(shared))
        observers.extend(
            (record, build_plugin(record, dataclasses.replace(shared)))
            for record in _observers(plan, shared)
        )
    except BaseException:
        shut_down(executor, scheduler, kv_connector, *(each for _, each in observers))
        raise
    return EngineCore(
        config,
        model,
        plan,
        engine_index,
        clock,
        executor,
        kv_cache,
        kv_connector,
        scheduler,
        observers,
    )


def _start_executor(
    executor: Executor,
    plan: PluginPlan,
    context: ExecutorContext,
    on_failure: Callable[[str], None],
) -> KVCacheConfig:
    """Start all ranks with their model and cache; returns the layout of the cache."""
    try:
        executor.on_failure(on_failure)
        executor.start()
        return _initialize_kv_cache(executor, context)
    except BaseException as error:
        with blamed(rank_plugin(plan, error), "its start"):
            raise


def _observers(plan: PluginPlan, context: SchedulerContext) -> Iterator[PluginRecord]:
    """Observers required by the configuration: built-in ones before others, which may rely on their checks.

    A missing built-in observer is reported: no other one replaces it.
    """
    own = STEP_OBSERVERS.provider
    records = sorted(plan.all(STEP_OBSERVERS.kind), key=lambda record: record.name not in own)
    for name in own.keys() - {record.name for record in records}:
        logger.warning(
            "steps of scheduler '%s' run without the step observer '%s'; pip install %s",
            context.plugin_name,
            name,
            own[name],
        )
    for record in records:
        with blamed(record, "observes"):
            is_needed = load_class(record).observes(context.config)
        if is_needed:
            yield record


def _for_remote_ranks(config: EngineConfig) -> EngineConfig:
    """Return the configuration for nodes that this one cannot inspect: they may have GPUs, so steps are as long as on
    GPUs.
    """
    if config.device != "auto" or config.max_num_batched_tokens is not None:
        return config
    return config.replaced(max_num_batched_tokens=max(STEP_TOKENS, config.max_num_seqs))


def _initialize_kv_cache(executor: Executor, context: ExecutorContext) -> KVCacheConfig:
    """Plan the cache of the started ranks and allocate it on all of them. Raises ConfigError when it does not fit."""
    config = context.config
    started = time.monotonic()
    kv_cache = plan_kv_cache(
        executor.kv_cache_groups(), executor.available_memory(), config, context.max_model_len
    )
    executor.initialize(kv_cache)
    logger.info(
        "KV cache: %d blocks of %d tokens, longest sequence %d, steps in flight %d; caches and warm-up took %.2f s",
        kv_cache.num_blocks,
        kv_cache.block_size,
        kv_cache.max_model_len,
        executor.max_concurrent_batches,
        time.monotonic() - started,
    )
    longest = context.model.max_model_len
    if kv_cache.max_model_len < longest and config.max_model_len is None:
        logger.warning(
            "the model handles %d tokens, but the KV cache holds %d: longer sequences are rejected",
            longest,
            kv_cache.max_model_len,
        )
    return kv_cache


def _executor_context(
    config: EngineConfig,
    model: ModelInfo,
    plan: PluginPlan,
    engine_index: int,
    starter: ProcessStarter | None,
) -> ExecutorContext:
    worker = plan.get("worker")
    worker_class = load_class(worker)
    return ExecutorContext(
        config,
        model,
        max_model_len=min(config.max_model_len or model.max_model_len, model.max_model_len),
        worker_class=worker_class,
        worker_target=worker.target,
        worker_options=load_options(worker, worker_class),
        engine_index=engine_index,
        engine_id=f"{secrets.token_hex(ENGINE_ID_BYTES)}_dp{engine_index}",
        plan_text=plan.encode(),
        kv_connector=plan.find("kv_connector"),
        starter=starter,
    )


def _max_round_tokens(context: ExecutorContext, executor: Executor) -> int:
    """Maximum tokens per row in one step: 1 if steps overlap or are counted, or if a KV connector must see each one."""
    is_possible = (
        "rounds" in executor.capabilities
        and executor.max_concurrent_batches == 1
        and executor.feeds_back_tokens
        and context.kv_connector is None
        and not context.model.needs_lockstep
    )
    return context.config.max_round_tokens if is_possible else 1
