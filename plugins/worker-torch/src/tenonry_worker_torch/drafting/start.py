"""Opens the configured drafter, and declares settings that could never use it. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.errors import ConfigError
from tenonry_drafters.base import DrafterContext
from tenonry_drafters.controller import MAX_TOKENS
from tenonry_drafters.models import MODELS
from tenonry_drafters.points import DRAFTERS, build_drafter, find_drafter
from tenonry_torch_base.conflicts import Conflicts

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tenonry.config import EngineConfig, PluginChoice
    from tenonry.interfaces.worker import WorkerContext
    from tenonry_drafters.base import Drafter
    from tenonry_worker_torch.loaded_model import LoadedModel

CONFLICTS = Conflicts(
    "drafter",
    {
        "max_round_tokens": "drafts take the places of further tokens in a step; use 2 or more",
        "pipeline_parallel_size": "steps overlap; use --tensor-parallel-size instead",
        "device": "steps overlap there; drafts are verified on the CPU",
        "max_images": "drafts are verified of text alone; use max_images=0",
        "kv_connector": "it has to see every token; leave one of them out",
        "enable_expert_parallel": "engines step together, a token at a time; leave one of them out",
    },
)
GIVEN = frozenset({MODELS})  # `Drafter.needs` supported by this worker


def most_drafts(config: EngineConfig) -> int:
    """Maximum draft tokens of a row in one pass: the slots of a multi-token step after its own next token."""
    return min(config.max_round_tokens, MAX_TOKENS) - 1


def open_drafter(
    context: WorkerContext,
    choice: PluginChoice,
    model: LoadedModel,
    places: Callable[[], AbstractContextManager[None]],
    max_model_len: int,
    resolved: dict[str, str],
) -> Drafter | None:
    """Open the configured drafter; None on a rank that receives drafts of another. Raises ConfigError or PluginError.

    `places`: context of each pass of a draft model, like the served one.
    """
    if model.states is not None:
        raise ConfigError(
            f"drafter={choice.name} does not go with {type(model.module).__name__}: layers with a state per sequence "
            "cannot take guesses back; leave it out"
        )
    found, record = find_drafter(choice)
    unknown = sorted(found.needs - GIVEN)
    if unknown:
        raise ConfigError(
            f"drafter={choice.name} needs {', '.join(unknown)}; worker 'torch' gives drafters tokens and "
            f"{', '.join(sorted(GIVEN))}, and nothing else"
        )
    resolved[DRAFTERS.kind] = f"{record.name} ({record.distribution} {record.version})"
    if model.parallel.tensor.rank != 0:
        return None
    given = DrafterContext(
        context.config,
        context.model,
        vocab_size=model.vocab_size,
        max_num_seqs=context.config.max_num_seqs,
        max_model_len=max_model_len,
        max_drafts=most_drafts(context.config),
    )
    if MODELS in found.needs:
        from tenonry_worker_torch.drafting.models import TorchDraftModels

        given.models = TorchDraftModels(context, model, max_model_len, places)
    return build_drafter(found, record, given)
