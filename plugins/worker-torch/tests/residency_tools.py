"""A worker that sleeps and is updated, and what it answers."""

from __future__ import annotations

import torch
import worker_tools
from worker_driver import Driver, Request

from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.step import DoneFuture
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.worker import TorchWorker

PROMPTS = worker_tools.prompts()


def started(folder, *, fuse=True, **config):
    options = TorchOptions(fuse=fuse, sliding_window_groups=False)
    context = worker_tools.context(folder, options=options, **config)
    worker = TorchWorker(context)
    worker.load()
    plan = plan_kv_cache(
        [list(worker.kv_cache_groups())],
        [worker.available_memory()],
        context.config,
        context.max_model_len,
    )
    worker.initialize_cache(plan)
    return worker


def answers(worker):
    driver = Driver(
        lambda output: DoneFuture(worker.execute_model(output)),
        max_num_seqs=6,
        num_blocks=32,
        block_size=worker.runner.state.block_size,
    )
    requests = [Request(i + 1, prompt, max_tokens=12) for i, prompt in enumerate(PROMPTS)]
    return [request.output for request in driver.run(requests)]


def changed(model, seed=1, only=None):
    """Other weights for a model of transformers, in place; the state as its checkpoint names it."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and (only is None or only in name):
                weight.add_(torch.randn_like(weight) * weight.std())
    return model


def wanted(model):
    return [worker_tools.greedy(model, prompt) for prompt in PROMPTS]
