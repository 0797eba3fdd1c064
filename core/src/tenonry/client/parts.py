"""What `LLM` and `AsyncLLM` build alike from a configuration: plan, model facts, IO processor, records. Front end."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.io_processor import IOProcessor, IOProcessorContext
from tenonry.model_info import ModelInfo
from tenonry.plugin_manager import PluginManager, build_plugin
from tenonry.plugin_plan import PluginPlan
from tenonry.stats import EngineInfo, UsageRecord

logger = logging.getLogger(__name__)


class FrontEndParts(NamedTuple):
    """The front end's side of the plan."""

    manager: PluginManager
    plan: PluginPlan
    model: ModelInfo
    io_processor: IOProcessor | None


def build_front_end(config: EngineConfig, *, launcher: bool) -> FrontEndParts:
    """Resolve the plugins and the model; nothing is started. Raises on the first thing that is wrong."""
    manager, plan, model = resolve_front_end(config, launcher=launcher)
    return FrontEndParts(manager, plan, model, build_io_processor(config, plan, model))


def resolve_front_end(config: EngineConfig, *, launcher: bool) -> tuple[PluginManager, PluginPlan, ModelInfo]:
    """The same without the IO processor, which only processes that serve requests need."""
    manager = PluginManager(config.plugins)
    plan = manager.plan(config, launcher=launcher)
    model = manager.resolve_model(config)
    if config.max_model_len is not None and config.max_model_len > model.max_model_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the {model.max_model_len} tokens that the model "
            f"{model.name} was made for; lower it, or leave it out"
        )
    return manager, plan, model


def build_io_processor(config: EngineConfig, plan: PluginPlan, model: ModelInfo) -> IOProcessor | None:
    """The chosen one, or None where the configuration wants none."""
    entry = plan.find("io_processor")
    if entry is None or config.skip_tokenizer_init:
        return None
    made: IOProcessor = build_plugin(entry, lambda options: IOProcessorContext(config, model, options=options))
    return made


def announce(manager: PluginManager, info: EngineInfo) -> None:
    """All engines are ready: the log names the plugins in use, and hook modules hear of it."""
    logger.info("plugins: %s", ", ".join(f"{p.kind} {p.name} {p.version}".rstrip() for p in info.plugins))
    manager.call("tenonry_engine_ready", info=info)


def engine_info(
    config: EngineConfig, model: ModelInfo, plan: PluginPlan, *,
    num_gpu_blocks: int, block_size: int, max_model_len: int,
    engine_indexes: tuple[int, ...] = (0,), context: str = "library",
) -> EngineInfo:  # fmt: skip
    """The facts known once every engine is ready."""
    return EngineInfo(
        model=model.name,
        served_model_name=(config.served_model_name or (config.model,))[0],
        max_model_len=max_model_len,
        num_gpu_blocks=num_gpu_blocks,
        block_size=block_size,
        engine_indexes=engine_indexes,
        plugins=plan.records(),
        usage=usage_record(config, model, block_size, context),
    )


def usage_record(config: EngineConfig, model: ModelInfo, block_size: int, context: str) -> UsageRecord:
    """What is configured, in one record for stat loggers. Nothing is sent anywhere."""
    return UsageRecord(
        architecture=model.architecture,
        dtype=model.dtype if config.dtype == "auto" else config.dtype,
        block_size=block_size,
        gpu_memory_utilization=config.gpu_memory_utilization,
        kv_cache_bytes=config.kv_cache_memory_bytes,
        quantization=None,
        enable_lora=False,
        enable_prefix_caching=config.enable_prefix_caching,
        enforce_eager=config.enforce_eager,
        tensor_parallel_size=config.tensor_parallel_size,
        data_parallel_size=config.data_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        kv_connector=config.kv_connector.name if config.kv_connector else None,
        kv_cache_dtype=model.dtype if config.dtype == "auto" else config.dtype,
        context=context,
    )
