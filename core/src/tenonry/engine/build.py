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
from tenonry.plugin_discovery import kernel_version
from tenonry.plugin_manager import blamed, build_plugin, load_plugin, resolve_owned
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
    logger.info(
        "engine %d of tenonry %s: %s", engine_index, kernel_version(), config.model_dump_json(exclude_defaults=True)
    )
    executor, connector = _build_executor(config, model, plan, engine_index), None
    try:
        with blamed(plan.get("executor"), "on_failure"):
            executor.on_failure(on_failure)
        with blamed(plan.get("worker"), "start"):
            executor.start()
        with blamed(plan.get("worker"), "initialize"):
            kv_cache = _initialize_kv_cache(executor, config, model)
        connector = _build_connector(config, model, plan, engine_index, kv_cache)
        scheduler = _build_scheduler(config, plan, engine_index, kv_cache, executor, connector, clock)
    except BaseException:
        release(executor, connector)
        raise
    validator = None
    if config.validate_scheduler:
        validator = StepValidator(
            plan.get("scheduler").name, config, kv_cache, kv_cache.max_model_len, feeds_back=executor.feeds_back_tokens
        )
    return EngineParts(executor, kv_cache, connector, scheduler, validator)


def release(*parts: Executor | Scheduler | KVConnector | None) -> None:
    """Shut down what is there; one that fails keeps no other from it."""
    for part in parts:
        if part is not None:
            try:
                part.shutdown()
            except Exception:
                logger.exception("an error while shutting down %s", type(part).__name__)


def longest_sequence(config: EngineConfig, model: ModelInfo) -> int:
    """Tokens, before the KV cache is known."""
    return min(config.max_model_len or model.max_model_len, model.max_model_len)


def _build_executor(config: EngineConfig, model: ModelInfo, plan: PluginPlan, engine_index: int) -> Executor:
    worker_class, worker_options, worker = load_plugin(plan, "worker")
    executor: Executor = build_plugin(
        plan.get("executor"),
        lambda options: ExecutorContext(
            config,
            model,
            max_model_len=longest_sequence(config, model),
            worker_class=worker_class,  # type: ignore[arg-type]  # load() checked it against the interface
            worker_target=worker.target,
            worker_options=worker_options,
            options=options,
            engine_index=engine_index,
            plan_text=plan.encode(),
            kv_connector=plan.find("kv_connector"),
        ),
    )
    return executor


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
    entry = plan.find("kv_connector")
    if entry is None:
        return None
    connector: KVConnector = build_plugin(
        entry,
        lambda options: KVConnectorContext(
            config,
            model,
            KVConnectorRole.SCHEDULER,
            engine_id=f"{entry.name}_dp{engine_index}",
            kv_cache=kv_cache,
            options=options,
        ),
    )
    return connector


def _build_scheduler(
    config: EngineConfig,
    plan: PluginPlan,
    engine_index: int,
    kv_cache: KVCacheConfig,
    executor: Executor,
    connector: KVConnector | None,
    clock: Callable[[], float],
) -> Scheduler:
    entry = plan.get("scheduler")
    scheduler: Scheduler = build_plugin(
        entry,
        lambda options: SchedulerContext(
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
        ),
    )
    return scheduler


def _resolve_owned_class(kind: str, name: str) -> Any:
    return resolve_owned(kind, name)[0]
