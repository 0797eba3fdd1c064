"""Checks whether given settings can serve a model, and reports its requirements. Process of the command line.

The chosen worker is built and queried (`Worker.examine`); nothing is loaded, and no engine is started. For a hub model
only its small files are read: its weights are not downloaded.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tenonry.config import EngineConfig, PluginChoice
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ConfigError, ModelError, PluginError, TenonryError
from tenonry.info import ModelInfo, PluginRecord, WorkerFacts
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import MemoryReport
from tenonry.plugin.checks import load_options
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import PluginManager, build_plugin
from tenonry.plugin.plan import load_class
from tenonry_hf_hub import find_weights
from tenonry_models.memory import free_memory


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result for a model. `reason`: why it cannot be served; `served_by`: other workers that could.

    `stored_here`: its weights are in the folder. `max_context` is the longest sequence, in tokens, that fits into the
    KV cache of `kv_cache_bytes` that an engine would make of `free_bytes`; None if the worker does not report the size
    of a token.
    """

    model: str
    servable: bool
    reason: str = ""
    served_by: tuple[str, ...] = ()
    stored_here: bool = False
    max_model_len: int = 0
    max_context: int | None = None
    kv_cache_bytes: int = 0
    free_bytes: int = 0
    facts: WorkerFacts


def check(config: EngineConfig, memory: int | None = None) -> Report:
    """The report on `config.model` with these settings; `memory`: free bytes to assume, else those of this machine.

    Raises ModelError or ConfigError when there is no model to report on, or a setting is invalid for any model.
    """
    manager = PluginManager(config.plugins)
    worker = manager.resolve("worker", config.worker, config)
    model = manager.resolve_model(config.replaced(load_format="dummy"))
    report = Report(
        model=config.model,
        servable=False,
        stored_here=_has_files(Path(model.path)),
        max_model_len=model.max_model_len,
        facts=WorkerFacts(architecture=model.architecture, worker=worker.name),
    )
    try:
        facts = examine(worker, config, model)
    except (ModelError, ConfigError) as error:
        others = tuple(_others(worker, config, model))
        return msgspec.structs.replace(report, reason=str(error), served_by=others)
    report = msgspec.structs.replace(report, facts=facts)
    try:
        _check_ranks(facts, config)
        _check_tokenizer(manager, config, model)
        return _with_memory(report, config, free_memory(config, memory))
    except (ModelError, ConfigError) as error:
        return msgspec.structs.replace(report, reason=str(error))


def _has_files(folder: Path) -> bool:
    """Return True if there are weights in supported files."""
    try:
        return bool(find_weights(folder).files)
    except ModelError:
        return False


def examine(record: PluginRecord, config: EngineConfig, model: ModelInfo) -> WorkerFacts:
    """The worker's facts about the model. Propagates its exceptions."""
    worker_class = load_class(record)
    context = WorkerContext(
        config,
        model,
        max_model_len=min(config.max_model_len or model.max_model_len, model.max_model_len),
        options=load_options(record, worker_class),
    )
    worker: Worker = build_plugin(record, context)
    try:
        facts = worker.examine()
    finally:
        worker.shutdown()
    return facts if facts.worker else msgspec.structs.replace(facts, worker=record.name)


def _check_ranks(facts: WorkerFacts, config: EngineConfig) -> None:
    """Raise ConfigError when the model cannot be split over the configured ranks."""
    sizes = facts.features.get("tensor_parallel")
    if sizes is not None and config.tensor_parallel_size not in sizes:
        raise ConfigError(
            f"{facts.architecture} cannot be cut for tensor_parallel_size={config.tensor_parallel_size}; use "
            f"{' or '.join(map(str, sizes))}, and --data-parallel-size for engines on further devices"
        )
    stages = facts.features.get("pipeline_parallel")
    if stages is not None and config.pipeline_parallel_size > stages:
        raise ConfigError(
            f"{facts.architecture} has {stages} pipeline stages at most; pipeline_parallel_size="
            f"{config.pipeline_parallel_size} is too many; use {stages} or fewer"
        )


def _check_tokenizer(manager: PluginManager, config: EngineConfig, model: ModelInfo) -> None:
    """Raise ModelError when the tokenizer does not fit the model, as a front end would."""
    folder = Path(model.tokenizer_path or model.path)
    if config.skip_tokenizer_init or not (folder / "tokenizer.json").exists():
        return
    if config.io_processor is None:
        return
    try:
        record = manager.resolve("io_processor", config.io_processor, config)
    except PluginError:  # of another kind of plugin: nothing is known of the model's tokenizer
        return
    build_plugin(record, IOProcessorContext(config, model)).shutdown()


def _others(chosen: PluginRecord, config: EngineConfig, model: ModelInfo) -> list[str]:
    """Names of the other installed workers that would serve the model."""
    found = []
    for record in installed(KINDS["worker"]):
        if record.name == chosen.name:
            continue
        choice = PluginChoice(name=record.name)
        try:
            facts = examine(record, config.replaced(worker=choice), model)
        except TenonryError:
            continue
        if facts.num_parameters:  # the worker of a benchmark does not examine models
            found.append(record.name)
    return found


def _with_memory(report: Report, config: EngineConfig, memory: MemoryReport) -> Report:
    """The report with the longest context that the memory holds, by the arithmetic that an engine starts with.

    Raises ConfigError when the weights do not fit, or no block in addition to them.
    """
    facts = report.facts
    left = memory.free_bytes - facts.weight_bytes // config.world_size
    if left <= 0:
        raise ConfigError(
            f"the weights take {facts.weight_bytes} bytes, and {memory.free_bytes * config.world_size} are free; use a "
            "smaller data type or model, more ranks, or a machine with more memory"
        )
    report = msgspec.structs.replace(report, servable=True, free_bytes=memory.free_bytes)
    if not facts.groups:
        return report
    beside = msgspec.structs.replace(memory, free_bytes=left)
    longest = min(config.max_model_len or report.max_model_len, report.max_model_len)
    kv_cache = plan_kv_cache([facts.groups], [beside], config, longest)
    per_token = max(
        group.bytes_per_token for group in facts.groups
    )  # of a block, which is any group's
    return msgspec.structs.replace(
        report, max_context=kv_cache.max_model_len, kv_cache_bytes=kv_cache.num_slots * per_token
    )
