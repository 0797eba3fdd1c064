"""Rejects a model whose logits are not finite, and names the weights that cause it. Worker process, at start.

Comparisons with NaN always fail, so without this check every later one would report another cause.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("tenonry.worker")
MOST_NAMED = 3


class NotFiniteError(ModelError):
    """A model that computes NaN or infinity."""

    for_any_worker = True  # no other worker could serve it


def is_finite(values: torch.Tensor) -> bool:
    """True without NaN and positive infinity; models mask logits with negative infinity."""
    return not bool((values.isnan() | values.isposinf()).any())


def require_finite(module: torch.nn.Module, made: torch.Tensor) -> None:
    """Raises NotFiniteError where `made`, which `module` computed from finite inputs, is not finite.

    Warns of other damaged weights: requests that read them fail alone.
    """
    if not is_finite(made):
        raise NotFiniteError(f"{type(module).__name__} computes NaN: {_cause(module, made.dtype)}")
    damaged = _listed(_damaged(_partly_read(module)))
    if damaged:
        logger.warning(
            "%s: NaN or infinity in weights that only some tokens use: %s; requests with these tokens fail; download "
            "the checkpoint or save it again",
            type(module).__name__,
            damaged,
        )


def _cause(module: torch.nn.Module, dtype: torch.dtype) -> str:
    damaged = _listed(_damaged(_tensors(module)))
    if damaged:
        return f"its weights hold NaN or infinity: {damaged}; the checkpoint is damaged, download or save it again"
    if dtype == torch.float16:
        return (
            "its weights are finite, so float16 overflows; use --dtype bfloat16 or --dtype float32"
        )
    return (
        "the weights of this rank are finite, so those of another rank are not (its log names them), or the weights do "
        "not fit config.json; download or save the model again"
    )


def _listed(damaged: Iterator[str]) -> str:
    """The first few."""
    found = list(itertools.islice(damaged, MOST_NAMED + 1))
    more = ", …" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + more


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(module.named_parameters(), module.named_buffers())


def _partly_read(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Weights partly read by a short prompt: embeddings, and experts, which may be stacked in one tensor."""
    tables = {id(each.weight) for each in module.modules() if isinstance(each, torch.nn.Embedding)}
    for name, tensor in module.named_parameters():
        if id(tensor) in tables or "expert" in name or tensor.dim() > 2:
            yield name, tensor


def _damaged(tensors: Iterator[tuple[str, torch.Tensor]]) -> Iterator[str]:
    """Name and share of each tensor with NaN or infinity."""
    for name, tensor in tensors:
        if tensor.is_meta or not tensor.is_floating_point():
            continue
        values = tensor.detach()
        if values.element_size() == 1:
            values = values.float()
        if values.sum().isfinite():  # quick, and needs no memory
            continue
        is_bad = values.isnan() | values.isposinf()
        if isinstance(tensor, torch.nn.Parameter):
            is_bad |= values.isneginf()  # buffers may be masks
        if bad := int(is_bad.sum()):
            yield f"{name} ({bad} of {tensor.numel()} values)"
