"""A runner from its parts. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_scheduling.columns import BatchState
from tenonry_torch_base.history import History
from tenonry_torch_base.sampler.processors import ProcessorContext
from tenonry_torch_base.sampler.sampler import Sampler
from tenonry_worker_torch.kv_groups import GroupLayout
from tenonry_worker_torch.runner.drivers import forward_pass_of
from tenonry_worker_torch.runner.feature import RunnerContext
from tenonry_worker_torch.runner.feature_list import FeatureList
from tenonry_worker_torch.runner.features import OWN_FEATURES
from tenonry_worker_torch.runner.kv_memory import KVMemory
from tenonry_worker_torch.runner.runner import ModelRunner
from tenonry_worker_torch.runner.step import RowFailures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry.info import PluginRecord
    from tenonry_torch_base.sampler.processors import LogitsProcessor
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerFeature


def assemble_runner(  # noqa: PLR0913 - by name
    model: LoadedModel,
    *,
    max_num_seqs: int,
    max_model_len: int,
    num_blocks: int,
    block_size: int,
    groups: GroupLayout = GroupLayout(),  # noqa: B008 - frozen
    seed: int = 0,
    processors: Sequence[type[LogitsProcessor]] = (),
    features: Sequence[tuple[type[RunnerFeature], PluginRecord]] = (),
) -> ModelRunner:
    """A runner with the features that the model needs, and `features` of other packages after them."""
    state = BatchState(max_num_seqs, max_model_len, block_size, groups.num_groups)
    history = History(state, model.device)
    context = RunnerContext(model, state, history, RowFailures(), groups.num_state_slots)
    active = FeatureList(context, OWN_FEATURES, features)
    columns = ProcessorContext(
        max_num_seqs, model.vocab_size, model.device, history.tokens, state.token_ids
    )
    return ModelRunner(
        context,
        active,
        forward_pass_of(context, active, dummy_block=num_blocks),
        Sampler(columns, seed, processors, model.thresholds),
        KVMemory(num_blocks, block_size),
    )
