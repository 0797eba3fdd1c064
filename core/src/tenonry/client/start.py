"""Common construction steps of `LLM` and `AsyncLLM`: plan, model facts, IO processor, records. Front end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.config.sources import make_config
from tenonry.errors import ConfigError
from tenonry.info import EngineInfo, ModelInfo, PluginRecord
from tenonry.interfaces.io_processor import IOProcessor, IOProcessorContext
from tenonry.logs import open_standard_streams
from tenonry.messages import EngineFacts
from tenonry.plugin.manager import PluginManager, build_plugin, part_settings
from tenonry.plugin.plan import PluginPlan

logger = logging.getLogger(__name__)


def read_settings(values: Mapping[str, Any]) -> EngineConfig:
    """Return the configuration of `LLM`: keyword arguments over variables of the kernel and the chosen plugins."""
    config = make_config(values)
    chosen = PluginManager(config.plugins).choose(config, launcher=False)
    return make_config(values, part_settings(chosen, config))


def resolve_front_end(
    config: EngineConfig, *, launcher: bool
) -> tuple[PluginManager, PluginPlan, ModelInfo]:
    """Resolve the plugins and the model without building or starting anything. Raises the first error."""
    open_standard_streams()
    manager = PluginManager(config.plugins)
    plan = manager.plan(config, launcher=launcher)
    model = manager.resolve_model(config)
    if config.max_model_len is not None and config.max_model_len > model.max_model_len:
        raise ConfigError(
            f"max_model_len={config.max_model_len} is above the {model.max_model_len} tokens that the model "
            f"{model.name} was made for; lower it, or leave it out"
        )
    return manager, plan, model


def build_io_processor(
    config: EngineConfig,
    plan: PluginPlan,
    model: ModelInfo,
    submit: Callable[..., None],
    parts: contextlib.ExitStack,
) -> IOProcessor | None:
    """Build the chosen IO processor, which `parts` shuts down; None without one in the configuration.

    `submit`: see `IOProcessorContext`.
    """
    entry = plan.find("io_processor")
    if entry is None or config.skip_tokenizer_init:
        return None
    made: IOProcessor = build_plugin(entry, IOProcessorContext(config, model, submit))
    parts.callback(made.shutdown)
    return made


def describe(plugins: Iterable[PluginRecord]) -> str:
    """Plugins in use, for a log line."""
    return ", ".join(f"{each.kind} {each.name} {each.version}".rstrip() for each in plugins)


def announce(manager: PluginManager, info: EngineInfo) -> None:
    """Log the plugins in use and call the hook modules, once all engines are ready."""
    logger.info("plugins: %s", describe(info.plugins))
    manager.call("tenonry_engine_ready", info=info)


def engine_info(
    config: EngineConfig,
    model: ModelInfo,
    plan: PluginPlan,
    engines: Sequence[EngineFacts],
    context: str = "library",
) -> EngineInfo:
    """Facts known once every engine is ready."""
    dtype = model.dtype if config.dtype == "auto" else config.dtype
    first = engines[0]
    return EngineInfo(
        model=model.name,
        served_model_name=(config.served_model_name or (config.model,))[0],
        max_model_len=first.max_model_len,
        num_gpu_blocks=sum(engine.num_gpu_blocks for engine in engines),
        block_size=first.block_size,
        engine_indexes=tuple(sorted(engine.index for engine in engines)),
        plugins=plan.records(),
        tasks=first.tasks,
        usage={
            **msgspec.json.decode(config.describe(plan.secrets)),
            "architecture": model.architecture,
            "dtype": dtype,
            "block_size": first.block_size,
            "context": context,
        },
    )
