"""The kernel of a feed-forward half with experts. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.weights import address, by_input, filled_up

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import ExpertParts


class _Struct(ctypes.Structure):
    """`experts` in native/experts.h."""

    _fields_ = (
        *(
            (name, COUNT)
            for name in ("hidden", "experts", "chosen", "inner", "shared", "is_normalised")
        ),
        *((name, ADDRESS) for name in ("norm_weight", "router", "gate_up", "down")),
        *((name, ADDRESS) for name in ("shared_gate_up", "shared_down", "shared_gate")),
        ("norm_eps", REAL),
    )


class Experts:
    """See `ExpertParts`. Holds the weights transposed, a second time."""

    __slots__ = ("_address", "_floats", "_function", "_held", "_room", "_scratch", "_tokens")

    def __init__(self, parts: ExpertParts, instruction_set: str) -> None:
        num_experts, hidden, inner = parts.down.shape
        shared = 0 if parts.shared_down is None else parts.shared_down.shape[1]
        weights = [
            parts.norm_weight,
            by_input(parts.router),
            by_input(parts.gate_up),
            by_input(parts.down),
            None if parts.shared_gate_up is None else by_input(parts.shared_gate_up),
            None if parts.shared_down is None else by_input(parts.shared_down),
            parts.shared_gate,
        ]
        made = _Struct(
            hidden,
            num_experts,
            parts.chosen,
            inner,
            shared,
            int(parts.is_normalised),
            *map(address, weights),
            parts.norm_eps,
        )
        widest = max(inner, shared)
        self._held = (weights, made)
        self._address = ctypes.addressof(made)
        self._floats = 3 * hidden + filled_up(num_experts) + filled_up(2 * widest) + widest
        self._function = function("experts", instruction_set)
        self._room = 0
        self._make_room(1)

    def _make_room(self, count: int) -> None:
        """Allocate scratch memory for this number of tokens."""
        self._scratch = torch.empty(count * self._floats)
        self._tokens = torch.empty(count, dtype=torch.int64)
        self._room = count

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        count = len(hidden)
        if count > self._room:
            self._make_room(count)
        out = torch.empty_like(hidden)
        self._function(
            self._address,
            count,
            hidden.data_ptr(),
            out.data_ptr(),
            self._scratch.data_ptr(),
            self._tokens.data_ptr(),
        )
        return out
