"""Runs a model without storage, to record the arguments of its layers. Worker process.

On the `meta` device tensors have shapes and no values. Models read a few values all the same: positions, to detect
packed sequences, or which experts were chosen. Here small tensors of integers keep their values on the CPU, and a value
that depends on weights reads as zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

META = torch.device("meta")
CPU = torch.device("cpu")
MAX_KEPT = 1 << 16  # elements: positions and masks of a short prompt, not tables of a long context
_READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default}  # noqa: SLF001
_FINDS = {torch.ops.aten.nonzero.default}
_LEAVES_UNSET = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default}
# Without gradients, a tensor's own `to` arrives as one operation.
_COPIES = {
    torch.ops.aten._to_copy.default,  # noqa: SLF001
    torch.ops.aten.to.device,
    torch.ops.aten.to.dtype_layout,
}
_VIEWS = {torch.ops.aten.view.default}


class MetaRun(TorchDispatchMode):
    """A mode in which operations accept tensors of the CPU and of `meta` together; the result has no storage.

    Only shapes and arguments are meaningful. No conclusion may be drawn from a value.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [
            leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        if any(tensor.is_meta for tensor in tensors):
            return _without_values(func, args, kwargs)
        device = kwargs.get("device")
        if device is None or torch.device(device) != META:
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        if made.is_floating_point() or made.numel() > MAX_KEPT:
            return made
        kept = func(*args, **{**kwargs, "device": CPU})
        return kept.zero_() if func in _LEAVES_UNSET else kept


def _without_values(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on shapes alone; at least one tensor has no values."""
    first = args[0] if args else None
    if isinstance(first, torch.Tensor):
        if func in _READS:
            return _zero(first.dtype)
        if func in _FINDS:
            return torch.zeros(0, first.dim(), dtype=torch.long)
        if func in _COPIES:
            said = (*args[1:], *kwargs.values())
            target = next((value for value in said if isinstance(value, torch.device)), META)
            dtype = next((value for value in said if isinstance(value, torch.dtype)), first.dtype)
            if target != META:
                return torch.zeros(first.shape, dtype=dtype, device=target)
        if func in _VIEWS:  # the layout of an operation's result differs between devices
            return first.contiguous().view(*args[1:])
    args, kwargs = _pytree.tree_map_only(torch.Tensor, _to_meta, (args, kwargs))
    return func(*args, **kwargs)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.to(META)


def _zero(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
