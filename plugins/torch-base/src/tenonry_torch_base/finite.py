"""Refuses a model whose logits are not finite, and names the weights that cause it. Worker process, at start.

Comparisons with NaN fail whatever is compared, so without this every later check would blame something else.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_NAMED = 3


class NotFiniteError(ModelError):
    """A model that computes NaN or infinity."""

    for_any_worker = True  # no other worker could serve it


def is_finite(values: torch.Tensor) -> bool:
    """No NaN and no positive infinity; negative infinity is how models mask logits."""
    return not bool((values.isnan() | values.isposinf()).any())


def require_finite(module: torch.nn.Module, made: torch.Tensor) -> None:
    """Raises NotFiniteError where `made`, which `module` computed from finite inputs, is not finite."""
    if is_finite(made):
        return
    raise NotFiniteError(f"{type(module).__name__} computes NaN: {_cause(module, made.dtype)}")


def _cause(module: torch.nn.Module, dtype: torch.dtype) -> str:
    damaged = list(itertools.islice(_damaged(module), MOST_NAMED + 1))
    if damaged:
        more = ", …" if len(damaged) > MOST_NAMED else ""
        return (
            f"its weights hold NaN or infinity: {', '.join(damaged[:MOST_NAMED])}{more}; the checkpoint is damaged, "
            "download or save it again"
        )
    if dtype == torch.float16:
        return (
            "its weights are finite, so float16 overflows; use --dtype bfloat16 or --dtype float32"
        )
    return (
        "the weights of this rank are finite, so those of another rank are not (its log names them), or the weights do "
        "not fit config.json; download or save the model again"
    )


def _damaged(module: torch.nn.Module) -> Iterator[str]:
    """Name and share of each tensor with NaN or infinity."""
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta or not tensor.is_floating_point():
            continue
        values = tensor.float() if tensor.element_size() == 1 else tensor
        is_bad = values.isnan() | values.isposinf()
        if isinstance(tensor, torch.nn.Parameter):
            is_bad |= values.isneginf()  # buffers may be masks
        if bad := int(is_bad.sum()):
            yield f"{name} ({bad} of {tensor.numel()} values)"
