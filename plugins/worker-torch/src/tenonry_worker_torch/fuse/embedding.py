"""Detects wrappers that do not feed their text model its plain embedding. Some embed their placeholder tokens
differently, which fused layers bypass. Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.text_part import text_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from transformers import PreTrainedModel


class _Reached(Exception):
    """Ends a run where the text model begins."""


def embeds_plainly(model: PreTrainedModel) -> bool:
    """Return True if the text model receives its embedding of every token that the configuration names, or the ids."""
    _, stack = text_stack(model)
    if stack is model.base_model:
        return True
    ids = torch.tensor(sorted(set(_named_tokens(model))), device=model.device)
    fed = _fed(model, stack, ids)
    if fed is None:
        return True
    plain = stack.get_input_embeddings()(ids)
    return torch.equal(fed[0], plain)


def _named_tokens(model: PreTrainedModel) -> Iterator[int]:
    """Ids of the vocabulary that the wrapper's configuration names, and the first few."""
    vocab_size = int(model.config.get_text_config().vocab_size)
    yield from range(min(4, vocab_size))
    for key, value in model.config.to_dict().items():
        for token in value if isinstance(value, list) else [value]:
            if "token" in key and isinstance(token, int) and 0 <= token < vocab_size:
                yield int(token)


def _fed(model: PreTrainedModel, stack: nn.Module, ids: torch.Tensor) -> torch.Tensor | None:
    """Return the embeddings [1, T, H] passed to the text model for `ids` [T]; None if it receives the ids."""
    seen: list[Any] = []

    def stop(_module: nn.Module, _arguments: Any, options: dict[str, Any]) -> None:
        seen.append(options.get("inputs_embeds"))
        raise _Reached

    hook = stack.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with torch.inference_mode():
            model(input_ids=ids[None], use_cache=False)
    except _Reached:
        pass
    finally:
        hook.remove()
    found: torch.Tensor | None = seen[0] if seen else None
    return found
