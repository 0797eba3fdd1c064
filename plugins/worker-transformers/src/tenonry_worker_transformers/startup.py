"""One-time start of the worker: resolve its extension points, load, check, build the runner. Worker process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_hf_hub import holds_weights
from tenonry_torch_base.device import choose_device, prepare_device
from tenonry_torch_base.grammars import open_grammars
from tenonry_torch_base.imports import importing
from tenonry_torch_base.one_rank import one_rank_facts
from tenonry_torch_base.points import BUFFERS, DEFAULT_BUFFERS, LOGITS_PROCESSORS, resolve_class
from tenonry_torch_base.sampler.grammar import GrammarMasks
from tenonry_torch_base.settings import WorkerSettings
from tenonry_torch_base.weights import progress_only_on_a_terminal
from tenonry_worker_transformers.loaded_model import LoadedModel
from tenonry_worker_transformers.loading import Outline, load_model, outline
from tenonry_worker_transformers.model_runner import ModelRunner

if TYPE_CHECKING:
    from tenonry.info import WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry_torch_base.phases import Phases
    from tenonry_worker_transformers.options import TransformersOptions

logger = logging.getLogger("tenonry.worker")


def refuse_sharded(load_format: str) -> None:
    """Raises ModelError: the files of ranks are those of another worker."""
    if load_format == "sharded":
        raise ModelError(
            "worker 'transformers' does not read load_format=sharded; --worker torch does, or give the checkpoint"
        )


def facts(context: WorkerContext) -> WorkerFacts:
    """Facts of the model, without its weights; the size of its cache is known only after a run. Raises ModelError."""
    load_format = context.config.load_format
    refuse_sharded(load_format)
    needs_weights = load_format != "dummy" and holds_weights(context.model.path)
    return facts_of(outline(context.model.path, needs_weights=needs_weights), context)


def facts_of(found: Outline, context: WorkerContext) -> WorkerFacts:
    """The same of a model that was looked at."""
    checkpoint = found.checkpoint
    of_files = {} if checkpoint is None else checkpoint.features
    return one_rank_facts(
        "transformers", found.architecture, found.whole, checkpoint, context, **of_files
    )


def load(
    context: WorkerContext, options: TransformersOptions, phases: Phases
) -> tuple[LoadedModel, dict[str, str], WorkerFacts]:
    """The checked model, the names of resolved extension points, and the model's facts."""
    config = context.config
    resolved: dict[str, str] = {}
    device = choose_device(config.device, context.local_rank)
    buffers = resolve_class(
        BUFFERS,
        options.buffers or DEFAULT_BUFFERS[device.type],
        resolved,
        allow_experimental=config.allow_experimental_plugins,
    )
    refuse_sharded(config.load_format)
    prepare_device(device, options)
    path = context.model.path
    with importing(), phases.of("look"):
        found = outline(path, needs_weights=config.load_format != "dummy")
    with phases.of("weights"):
        module = load_model(found, path, dtype=config.dtype, device=device, seed=config.seed)
    with progress_only_on_a_terminal(), phases.of("check"):
        model = LoadedModel(
            module,
            buffers(device, 2 if device.type == "cuda" else 1),
            max_model_len=context.max_model_len,
            skip_check=config.section(WorkerSettings).skip_model_check,
            batching=options.batching,
        )
    logger.info("Loaded %s, in seconds: %s", found.architecture, phases.text)
    return model, resolved, facts_of(found, context)


def make_runner(
    model: LoadedModel,
    context: WorkerContext,
    options: TransformersOptions,
    kv_cache: KVCacheConfig,
    resolved: dict[str, str],
) -> ModelRunner:
    """The runner, for a cache of the decided size."""
    processors: list[Any] = [
        resolve_class(LOGITS_PROCESSORS, name, resolved) for name in options.logits_processors
    ]
    store = open_grammars(context, model.vocab_size, resolved)
    processors.append(partial(GrammarMasks, store=store))
    return ModelRunner(
        model,
        kv_cache,
        max_num_seqs=context.config.max_num_seqs,
        seed=context.config.seed,
        processors=processors,
    )
