"""Builds the parts of an engine from the plan: executor, KV cache, connector, scheduler, validator. Engine process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tenonry.config import EngineConfig
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import KVCacheConfig, plan_kv_cache
from tenonry.model_info import ModelInfo
from tenonry.plugin_manager import load_plugin, resolve_owned
from tenonry.plugin_plan import PluginPlan
from tenonry.scheduling.validator import StepValidator

logger = logging.getLogger(__name__)


class EngineParts(NamedTuple):
    """What an engine core drives."""

    executor: Executor
    kv_cache: KVCacheConfig
    kv_connector: KVConnector | None
    scheduler: Scheduler
    validator: StepValidator | None


def build_parts(
    config: EngineConfig,
    model: ModelInfo,
    plan: PluginPlan,
    engine_index: int,
    on_failure: Callable[[str], None],
    clock: Callable[[], float],
) -> EngineParts:
    """Build in order; whatever was started is stopped again if a later part fails."""
    executor = _build_executor(config, model, plan, engine_index)
    try:
        executor.on_failure(on_failure)
        executor.start()
        kv_cache = _initialize_kv_cache(executor, config, model)
        connector = _build_connector(config, model, plan, engine_index, kv_cache)
        scheduler = _build_scheduler(config, plan, engine_index, kv_cache, executor, connector, clock)
    except BaseException:
        executor.shutdown()
        raise
    validator = None
    if config.validate_scheduler:
        validator = StepValidator(
            plan.get("scheduler").name, config, kv_cache, kv_cache.max_model_len, feeds_back=executor.feeds_back_tokens
        )
    return EngineParts(executor, kv_cache, connector, scheduler, validator)


def longest_sequence(config: EngineConfig, model: ModelInfo) -> int:
    """Tokens, before the KV cache is known."""
    return min(config.max_model_len or model.max_model_len, model.max_model_len)


def _build_executor(config: EngineConfig, model: ModelInfo, plan: PluginPlan, engine_index: int) -> Executor:
    cls, options, _ = load_plugin(plan, "executor")
    worker_class, worker_options, worker_entry = load_plugin(plan, "worker")
    connector = plan.find("kv_connector")
    context = ExecutorContext(
        config,
        model,
        max_model_len=longest_sequence(config, model),
        worker_class=worker_class,  # type: ignore[arg-type]  # load() checked it against the interface
        worker_target=worker_entry.target,
        worker_options=worker_options,
        options=options,
        engine_index=engine_index,
        plan_text=plan.encode(),
        kv_connector=connector,
    )
    return cls(context)  # type: ignore[call-arg,return-value]


def _initialize_kv_cache(executor: Executor, config: EngineConfig, model: ModelInfo) -> KVCacheConfig:
    started = time.monotonic()
    kv_cache = plan_kv_cache(
        executor.kv_cache_groups(), executor.available_memory(), config, longest_sequence(config, model)
    )
    executor.initialize(kv_cache)
    logger.info(
        "KV cache: %d blocks of %d tokens, longest sequence %d; caches and warm-up took %.2f s",
        kv_cache.num_blocks, kv_cache.block_size, kv_cache.max_model_len, time.monotonic() - started,
    )  # fmt: skip
    if kv_cache.max_model_len < model.max_model_len and config.max_model_len is None:
        logger.warning(
            "the model handles %d tokens, but the KV cache holds %d: longer sequences are refused",
            model.max_model_len, kv_cache.num_slots,
        )  # fmt: skip
    return kv_cache


def _build_connector(
    config: EngineConfig, model: ModelInfo, plan: PluginPlan, engine_index: int, kv_cache: KVCacheConfig
) -> KVConnector | None:
    if plan.find("kv_connector") is None:
        return None
    cls, options, entry = load_plugin(plan, "kv_connector")
    context = KVConnectorContext(
        config,
        model,
        KVConnectorRole.SCHEDULER,
        engine_id=f"{entry.name}_dp{engine_index}",
        kv_cache=kv_cache,
        options=options,
    )
    return cls(context)  # type: ignore[call-arg,return-value]


def _build_scheduler(
    config: EngineConfig,
    plan: PluginPlan,
    engine_index: int,
    kv_cache: KVCacheConfig,
    executor: Executor,
    connector: KVConnector | None,
    clock: Callable[[], float],
) -> Scheduler:
    cls, options, entry = load_plugin(plan, "scheduler")
    context = SchedulerContext(
        config,
        kv_cache,
        max_model_len=kv_cache.max_model_len,
        clock=clock,
        options=options,
        plugin_name=entry.name,
        engine_index=engine_index,
        max_concurrent_steps=executor.max_concurrent_batches,
        feeds_back_tokens=executor.feeds_back_tokens,
        kv_connector=connector,
        resolve=_resolve_owned_class,
    )
    return cls(context)  # type: ignore[call-arg,return-value]


def _resolve_owned_class(kind: str, name: str) -> Any:
    return resolve_owned(kind, name)[0]
