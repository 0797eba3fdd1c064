"""The stat logger `vllm`: passes records to a class written for vLLM. Observer thread of one process."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel, Field

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord
from tenonry_vllm_shim import records
from tenonry_vllm_shim.config import VllmConfig
from tenonry_vllm_shim.load import STAT_LOGGERS, load_class
from tenonry_vllm_shim.modules import stand_ins


class VllmStatLoggerOptions(PluginOptions):
    """Options of the stat logger `vllm`."""

    plugin: str = Field(
        description=f"Stat logger written for vLLM: module:Class, or an entry point of {STAT_LOGGERS.group}."
    )
    interval_s: float = Field(
        10.0, gt=0, le=3600, description="Seconds between two calls of log()."
    )


class VllmStatLogger(StatLogger):
    """One instance of the class for each engine, or one for all of a class that aggregates."""

    Options = VllmStatLoggerOptions

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        options = _options(context.options)
        self.interval_s = options.interval_s
        self._config = VllmConfig(context.config)
        self._class = load_class(options.plugin, STAT_LOGGERS)
        self._loggers: dict[int, Any] = {}
        self._preempted: dict[int, int] = {}
        self._indexes: tuple[int, ...] = (0,)

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Refuse a class that is missing or has no `record`."""
        name = _options(options).plugin
        found = load_class(name, STAT_LOGGERS)
        if not callable(getattr(found, "record", None)):
            raise ConfigError(
                f"plugin={name!r} has no method record; name a subclass of vLLM's StatLoggerBase"
            )

    def record(self, record: StatRecord) -> None:
        index = record.engine_index
        scheduler, iteration = None, None
        if record.scheduler is not None:
            scheduler = records.scheduler_stats(record.scheduler)
            self._preempted[index] = (
                self._preempted.get(index, 0) + record.scheduler.num_preemptions
            )
        if record.iteration is not None:
            iteration = records.iteration_stats(record.iteration, self._preempted.pop(index, 0))
        if scheduler is not None or iteration is not None:
            self._of(index).record(
                scheduler_stats=scheduler, iteration_stats=iteration, engine_idx=index
            )

    def log_engine_initialized(self, info: EngineInfo) -> None:
        self._indexes = info.engine_indexes
        self._config.learn(
            num_gpu_blocks=info.num_gpu_blocks,
            block_size=info.block_size,
            max_model_len=info.max_model_len,
            served_model_name=info.served_model_name,
        )
        for logger in self._known():
            logger.log_engine_initialized()

    def log(self) -> None:
        for logger in self._known():
            logger.log()

    def record_sleep_state(self, sleeping: bool, level: int) -> None:
        for logger in self._known():
            if hasattr(logger, "record_sleep_state"):
                logger.record_sleep_state(int(not sleeping), level)

    def _known(self) -> list[Any]:
        """Return the instances of all engines, each once."""
        return list({id(each): each for each in map(self._of, self._indexes)}.values())

    def _of(self, index: int) -> Any:
        """Return the instance that receives the numbers of an engine; built on first use."""
        if index not in self._loggers:
            if _aggregates(self._class):
                shared = next(iter(self._loggers.values()), None)
                self._loggers[index] = shared or self._build(list(self._indexes))
            else:
                self._loggers[index] = self._build(index)
        return self._loggers[index]

    def _build(self, index: int | list[int]) -> Any:
        with stand_ins():
            return self._class(self._config, index)


def _options(options: BaseModel) -> VllmStatLoggerOptions:
    if not isinstance(options, VllmStatLoggerOptions):
        raise ConfigError("the stat logger 'vllm' needs the option plugin=module:Class")
    return options


def _aggregates(cls: type[Any]) -> bool:
    """Return True for a class whose constructor has the engines' indexes."""
    return "engine_indexes" in inspect.signature(cls).parameters
