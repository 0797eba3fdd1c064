"""The kernel of the gated delta rule. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.weights import address

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import DeltaRuleParts

NO_ROWS = 0  # NULL: the first states, in order


class _Struct(ctypes.Structure):
    """`delta_rule` in native/delta_rule.h."""

    _fields_ = (
        *(
            (name, COUNT)
            for name in ("key_heads", "heads", "key_size", "value_size", "taps", "runs")
        ),
        *((name, ADDRESS) for name in ("run_begin", "run_length", "window_weight", "window_bias")),
        *((name, ADDRESS) for name in ("decay_rate", "decay_bias", "norm_weight")),
        ("norm_eps", REAL),
        ("unit_eps", REAL),
    )


class DeltaRule:
    """A `DeltaRuleKernel`. `address`: of the struct, while this lives; `floats`: the scratch that the kernel needs."""

    __slots__ = ("_function", "_kept", "_scratch", "_values", "address", "floats")

    def __init__(self, parts: DeltaRuleParts, instruction_set: str) -> None:
        begin, length = runs_of(parts.order, parts.columns)
        self.floats = parts.columns + parts.channels
        scratch = torch.empty(self.floats)
        made = _Struct(
            parts.key_heads,
            parts.heads,
            parts.key_size,
            parts.value_size,
            len(parts.window_weight),
            len(begin),
            address(begin),
            address(length),
            address(parts.window_weight),
            address(parts.window_bias),
            address(parts.decay_rate),
            address(parts.decay_bias),
            address(parts.norm_weight),
            parts.norm_eps,
            parts.unit_eps,
        )
        self._kept = (parts, begin, length, scratch, made)
        self.address = ctypes.addressof(made)
        self._scratch = scratch.data_ptr()
        self._values = parts.heads * parts.value_size
        self._function = function("delta_rule", instruction_set)

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        matrix: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        count, columns = projected.shape
        out = projected.new_empty(count, self._values)
        window_step, _, tap_step = window.stride()
        self._function(
            self.address,
            count,
            projected.data_ptr(),
            columns,
            window.data_ptr(),
            window_step,
            tap_step,
            matrix.data_ptr(),
            matrix.stride(0),
            NO_ROWS if rows is None else rows.data_ptr(),
            out.data_ptr(),
            self._scratch,
        )
        return out


def runs_of(order: torch.Tensor | None, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The order as runs of neighbouring columns: start and length of each, i64[runs]."""
    if order is None:
        return torch.zeros(1, dtype=torch.int64), torch.full((1,), columns)
    is_first = torch.ones_like(order, dtype=torch.bool)
    is_first[1:] = order.diff() != 1
    places = is_first.nonzero()[:, 0]
    ends = torch.cat([places[1:], places.new_tensor([len(order)])])
    return order[places].contiguous(), ends - places
