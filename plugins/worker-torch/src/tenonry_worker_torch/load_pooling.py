"""Loads a model that pools, and makes it ready for the runner. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.conflicts import Setup, refuse_conflicts
from tenonry_torch_base.device import choose_device, choose_dtype, prepare_device
from tenonry_torch_base.parallel.groups import alone
from tenonry_torch_base.points import BUFFERS, DEFAULT_BUFFERS, resolve, resolve_class
from tenonry_worker_torch.compatibility import of_packages
from tenonry_worker_torch.loaded_model import LoadedModel
from tenonry_worker_torch.loading.probe import ProbeResult
from tenonry_worker_torch.passes.model_pass import PassFacts
from tenonry_worker_torch.passes.optimise import optimise
from tenonry_worker_torch.passes.order import device_passes
from tenonry_worker_torch.points import MODEL_PASSES, POOLING_PASSES
from tenonry_worker_torch.pooling.comparison import PromptComparison
from tenonry_worker_torch.pooling.dense import load_dense
from tenonry_worker_torch.pooling.pooler import Pooler, load_module
from tenonry_worker_torch.state.backend import NoAttention

if TYPE_CHECKING:
    from tenonry.interfaces.worker import WorkerContext
    from tenonry_worker_torch.pooling.options import PoolingOptions
    from tenonry_worker_torch.pooling.outline import Outline

logger = logging.getLogger("tenonry.worker")


def load_pooling(
    found: Outline, context: WorkerContext, options: PoolingOptions, resolved: dict[str, str]
) -> LoadedModel:
    """The model of a folder, compared with itself and made fast. Raises ModelError or ConfigError.

    `resolved` receives the names of resolved extension points.
    """
    config = context.config
    device = choose_device(config.device, context.local_rank)
    consent = config.allow_experimental_plugins
    refuse_conflicts(of_packages(options, consent), Setup(config, options, device))
    prepare_device(device, options)
    dtype = choose_dtype(config.dtype, found.config, device)
    module = load_module(found, context.model.path, dtype, device, config.seed)
    seed = config.seed if found.checkpoint is None else None
    dense = load_dense(found.dense, device, seed=seed)
    buffers = resolve_class(
        BUFFERS, DEFAULT_BUFFERS[device.type], resolved, allow_experimental=consent
    )(device, 1)
    no_layers = ProbeResult(torch.empty(0), torch.empty(0, context.model.vocab_size))
    backend = NoAttention((), dtype, device)
    model = LoadedModel(module, backend, buffers, no_layers, context.max_model_len, alone())
    model.pooler = Pooler(module, found, dense, options.batch_tokens)
    comparison = PromptComparison(
        model.pooler,
        vocab_size=context.model.vocab_size,
        width=next(iter(found.tasks.values())),
        longest=context.max_model_len,
    )
    facts = PassFacts(comparison, context.max_model_len, backend.storage)
    installed = [
        resolve(MODEL_PASSES, name, resolved, allow_experimental=consent)
        for name in options.model_passes
    ]
    found_passes = [(each, None) for each in device_passes(device.type, POOLING_PASSES)]
    model.passes = optimise(model, [*installed, *found_passes], facts)
    logger.info("Model passes of %s: %s", found.architecture, model.passes.line)
    logger.debug("Model passes of %s:\n%s", found.architecture, model.passes.table)
    return model
