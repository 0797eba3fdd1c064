"""The variant of the decode kernel that no start would compile, launched once. Worker process; imports Triton.

Rows are few when a model is checked and when the worker warms up, so that their keys are split there. Steps of many
rows split nothing, which is another variant: the first of them would wait for its compiler.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from tenonry_attention_triton.launch import num_splits
from tenonry_torch_base.attention.base import DecodeRows

if TYPE_CHECKING:
    from tenonry_torch_base.attention.base import LayerCache, LayerSpec


def attend_unsplit(backend: Any, spec: LayerSpec, cache: LayerCache) -> None:
    """Attend with the maximum number of unsplit rows, over one key of zeros each. `backend`: a `TritonBackend`."""
    rows = 1
    while num_splits(rows, spec.num_kv_heads, backend.programs) > 1:
        rows *= 2
    device = backend.device
    first = torch.zeros(rows, dtype=torch.int32, device=device)
    plan = backend.decode_plan(DecodeRows(first[:, None], first + 1, first.long()))
    query = torch.zeros(rows, spec.num_heads, spec.key_size, dtype=backend.dtype, device=device)
    sinks = torch.zeros(spec.num_heads, dtype=backend.dtype, device=device)
    layer: Any = SimpleNamespace(spec=spec, kv_cache=[cache], sinks=sinks)
    backend.attend(layer, query, plan)
