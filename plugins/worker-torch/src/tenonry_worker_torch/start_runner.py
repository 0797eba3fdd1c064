"""The model runner of a loaded model: made from the settings, and warmed up. Worker process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_torch_base.grammars import open_grammars
from tenonry_torch_base.points import LOGITS_PROCESSORS, resolve, resolve_class
from tenonry_torch_base.sampler.grammar import GrammarMasks
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.drafting.start import most_drafts, open_drafter
from tenonry_worker_torch.kv_groups import GroupLayout, kept_text
from tenonry_worker_torch.points import RUNNER_FEATURES
from tenonry_worker_torch.runner.assemble import assemble_runner

if TYPE_CHECKING:
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.options import TorchOptions
    from tenonry_worker_torch.runner.runner import ModelRunner
    from tenonry_worker_torch.state.states import States

logger = logging.getLogger("tenonry.worker")

WARM_UP_TOKENS = 8
MIB = 1 << 20


def make_runner(
    model: LoadedModel,
    context: WorkerContext,
    options: TorchOptions,
    kv_cache: KVCacheConfig,
    resolved: dict[str, str],
) -> ModelRunner:
    """The runner over a cache of the decided size."""
    if model.states is not None and context.rank == 0:
        logger.info("%s", state_memory(model.states, context.config.max_num_seqs))
    if not model.backend.storage.is_exact and context.rank == 0:
        specs = [layer.spec for layer in model.layers.values()]
        logger.info("%s", kept_text(specs, model.backend.storage))
    processors: list[Any] = [
        resolve_class(LOGITS_PROCESSORS, name, resolved) for name in options.logits_processors
    ]
    if model.parallel.link.is_last and model.parallel.tensor.rank == 0:  # the rank that samples
        store = open_grammars(context, model.vocab_size, resolved)
        processors.append(partial(GrammarMasks, store=store, kernel=model.best_allowed))
    consent = context.config.allow_experimental_plugins
    runner = assemble_runner(
        model,
        max_num_seqs=context.config.max_num_seqs,
        max_model_len=kv_cache.max_model_len,  # the model's own may be millions, and the columns are as wide
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        groups=GroupLayout(len(kv_cache.groups), kv_cache.num_state_slots),
        seed=context.config.seed,
        processors=processors,
        features=[
            resolve(RUNNER_FEATURES, name, resolved, allow_experimental=consent)
            for name in options.runner_features
        ],
    )
    if torch_settings(context.config).drafter is not None:
        drafter = open_drafter(
            context,
            torch_settings(context.config).drafter,
            model,
            lambda: runner.forward_pass.affinity,
            kv_cache.max_model_len,
            resolved,
        )
        runner.draft(drafter, most_drafts(context.config))
    return runner


def state_memory(states: States, max_num_seqs: int) -> str:
    """Size of the states of running sequences, and the setting that changes it."""
    each = states.row_bytes
    how = "taken as sequences run" if states.device.type == "cpu" else "set aside"
    return (
        f"State of sequences: {each / MIB:.3g} MiB each, at most {max_num_seqs * each / MIB:.4g} MiB, {how}; "
        f"--max-num-seqs, now {max_num_seqs}, lowers it"
    )


def warm_up(runner: ModelRunner) -> None:
    """One prompt and one further token through row 0, over blocks that no request has yet; then the row leaves."""
    length = min(WARM_UP_TOKENS, runner.state.token_ids.shape[1] - 2)
    if length < 1:
        return
    wanted = -(-(length + 1) // runner.state.block_size)
    blocks = min(wanted, runner.state.block_table[0].shape[1])
    entering = NewRow(
        row=0,
        handle=1,
        token_ids=np.zeros(length, np.int32),
        num_computed=0,
        num_output=0,
        block_ids=(np.arange(blocks, dtype=np.int32),) * runner.model.backend.num_groups,
        sampling=SamplingParams(temperature=0.0),
    )
    # Without feedback between stages, the step contains the token, as in serving.
    feeds_back = runner.model.parallel.link.num_stages == 1
    next_token = -1 if feeds_back else 0
    prefill = _step_of_row_0(0, [entering], length, -1)
    decode = _step_of_row_0(1, [], 1, next_token)
    leave = SchedulerOutput(step_id=2, gone=np.zeros(1, np.int32))
    for output in (prefill, decode, leave):
        runner.answer(output).result()


def _step_of_row_0(
    step_id: int, new: list[NewRow], num_tokens: int, next_token: int
) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=step_id,
        new=new,
        row=np.zeros(1, np.int32),
        num_tokens=np.full(1, num_tokens, np.int32),
        next_token=np.full(1, next_token, np.int32),
        samples=np.ones(1, np.bool_),
    )
