"""Builds the parts of an engine from the plan: executor, KV cache, connector, scheduler, validator. Engine process."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from tenonry.config import EngineConfig
from tenonry.engine.validator import StepValidator
from tenonry.errors import ConfigError
from tenonry.info import ModelInfo, PluginRecord
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.interfaces.kv_connector import KVConnector, KVConnectorContext, KVConnectorRole
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import KVCacheConfig, plan_kv_cache
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import blamed, build_plugin, resolve_point
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.version import __version__

logger = logging.getLogger(__name__)


class EngineParts:
    """What an engine core drives. Built in order; whatever was started is stopped again if a later part fails."""

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        plan: PluginPlan,
        engine_index: int,
        on_failure: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        logger.info("engine %d of tenonry %s: %s", engine_index, __version__, config.describe())
        self.config, self.model, self.plan, self.index, self.clock = (
            config,
            model,
            plan,
            engine_index,
            clock,
        )
        self.executor: Executor = build_plugin(plan.get("executor"), self._executor_context())
        self.kv_connector: KVConnector | None = None
        try:
            with blamed(plan.get("executor"), "on_failure"):
                self.executor.on_failure(on_failure)
            with blamed(plan.get("worker"), "start"):
                self.executor.start()
            with blamed(plan.get("worker"), "initialize"):
                self.kv_cache = self._initialize_kv_cache()
            if (connector := plan.find("kv_connector")) is not None:
                self.kv_connector = build_plugin(connector, self._connector_context(connector))
            context = (
                self._scheduler_context()
            )  # the validator's own: a scheduler may change what it was given
            self.scheduler: Scheduler = build_plugin(
                plan.get("scheduler"), dataclasses.replace(context)
            )
        except BaseException:
            release(self.executor, self.kv_connector)
            raise
        self.validator = StepValidator(context) if config.validate_scheduler else None

    def _executor_context(self) -> ExecutorContext:
        worker = self.plan.get("worker")
        worker_class = load_class(worker)
        if (
            connector := self.plan.find("kv_connector")
        ) and "kv_connector" not in worker_class.capabilities:
            raise ConfigError(
                f"{connector.label()} needs the capability 'kv_connector'; {worker.label()} lacks it"
            )
        return ExecutorContext(
            self.config,
            self.model,
            max_model_len=longest_sequence(self.config, self.model),
            worker_class=worker_class,
            worker_target=worker.target,
            worker_options=load_options(worker, worker_class),
            engine_index=self.index,
            plan_text=self.plan.encode(),
            kv_connector=connector,
        )

    def _initialize_kv_cache(self) -> KVCacheConfig:
        executor, config, model = self.executor, self.config, self.model
        started = time.monotonic()
        kv_cache = plan_kv_cache(
            executor.kv_cache_groups(),
            executor.available_memory(),
            config,
            longest_sequence(config, model),
        )
        executor.initialize(kv_cache)
        logger.info(
            "KV cache: %d blocks of %d tokens, longest sequence %d, steps in flight %d; caches and warm-up took %.2f s",
            kv_cache.num_blocks, kv_cache.block_size, kv_cache.max_model_len, executor.max_concurrent_batches,
            time.monotonic() - started,
        )  # fmt: skip
        if kv_cache.max_model_len < model.max_model_len and config.max_model_len is None:
            logger.warning(
                "the model handles %d tokens, but the KV cache holds %d: longer sequences are refused",
                model.max_model_len, kv_cache.num_slots,
            )  # fmt: skip
        return kv_cache

    def _connector_context(self, entry: PluginRecord) -> KVConnectorContext:
        return KVConnectorContext(
            self.config,
            self.model,
            KVConnectorRole.SCHEDULER,
            engine_id=f"{entry.name}_dp{self.index}",
            kv_cache=self.kv_cache,
        )

    def _scheduler_context(self) -> SchedulerContext:
        return SchedulerContext(
            self.config,
            self.kv_cache,
            max_model_len=self.kv_cache.max_model_len,
            clock=self.clock,
            plugin_name=self.plan.get("scheduler").name,
            engine_index=self.index,
            max_concurrent_steps=self.executor.max_concurrent_batches,
            feeds_back_tokens=self.executor.feeds_back_tokens,
            kv_connector=self.kv_connector,
            resolve=resolve_point,
        )


def release(*parts: Executor | Scheduler | KVConnector | None) -> None:
    """Shut down what is there; one that fails keeps no other from it."""
    for part in [one for one in parts if one is not None]:
        try:
            part.shutdown()
        except Exception:
            logger.exception("an error while shutting down %s", type(part).__name__)


def longest_sequence(config: EngineConfig, model: ModelInfo) -> int:
    """Tokens, before the KV cache is known."""
    return min(config.max_model_len or model.max_model_len, model.max_model_len)
