"""The kernels for batch invariance: linear layers, norms and whole decoder layers. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tenonry_kernels_cpu.attention import struct_of
from tenonry_kernels_cpu.layer import can_attend
from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.low_rank import LowRank
from tenonry_kernels_cpu.weights import address
from tenonry_torch_base.invariant import InvariantKernels

if TYPE_CHECKING:
    from tenonry_torch_base.invariant import InvariantLayerParts, LayerAdapters, StepKeys

PANEL = 64  # outputs that lie side by side, as in native/invariant_product.h
PIECE_ROWS = 192  # as in native/invariant_layer.h


class _Chained(ctypes.Structure):
    """`chained` in native/invariant_product.h."""

    _fields_ = (
        ("inputs", COUNT),
        ("outputs", COUNT),
        ("is_half", COUNT),
        ("panels", ADDRESS),
        ("bias", ADDRESS),
    )


class _StepKeys(ctypes.Structure):
    """`step_keys` in native/invariant_attention.h."""

    _fields_ = (
        ("blocks", ADDRESS),
        ("block_size", COUNT),
        ("is_half", COUNT),
        ("slot", ADDRESS),
        ("table", ADDRESS),
        ("width", COUNT),
        *((name, ADDRESS) for name in ("position", "begin", "count", "line")),
        ("groups", COUNT),
        ("window", COUNT),
    )


class _Struct(ctypes.Structure):
    """`invariant_layer` in native/invariant_layer.h."""

    _fields_ = (
        *((name, COUNT) for name in ("hidden", "inner")),
        *((name, ADDRESS) for name in ("attention", "norm", "second_norm")),
        *((name, REAL) for name in ("norm_eps", "second_norm_eps")),
        *((name, _Chained) for name in ("projection", "out", "gate_up", "down")),
    )


class _LayerAdapters(ctypes.Structure):
    """`layer_adapters` in native/invariant_layer.h."""

    _fields_ = tuple(
        (name, ADDRESS) for name in ("projection", "out", "gate_up", "down", "slot", "query_slot")
    )


def in_panels(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [outputs, inputs] → [⌈outputs / PANEL⌉, inputs, PANEL], padded with zeros."""
    missing = -len(weight) % PANEL
    filled = functional.pad(weight, (0, 0, 0, missing))
    return filled.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


class InvariantLinear:
    """A linear layer. `struct`: its C structure, valid while this object lives."""

    __slots__ = ("_bias", "_function", "_panels", "_threads", "inputs", "outputs", "struct")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, instruction_set: str, threads: int
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self._panels = in_panels(weight)
        self._bias = None if bias is None else bias.to(torch.float32, copy=True)
        is_half = weight.dtype == torch.bfloat16
        self.struct = _Chained(
            self.inputs, self.outputs, is_half, address(self._panels), address(self._bias)
        )
        self._threads = threads
        self._function = function("invariant_linear", instruction_set)

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        out = x.new_empty(len(x), self.outputs)
        self._function(
            ctypes.addressof(self.struct),
            self._threads,
            len(x),
            x.data_ptr(),
            address(other),
            out.data_ptr(),
        )
        return out

    def weight(self) -> torch.Tensor:
        """As `InvariantLinear.weight` of tenonry-torch-base."""
        in_rows = self._panels.transpose(1, 2).reshape(-1, self.inputs)
        return in_rows[: self.outputs].clone()


class InvariantNorm:
    """A norm over the last dimension."""

    __slots__ = ("_eps", "_function", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float, instruction_set: str) -> None:
        self._weight = weight.float().contiguous()
        self._eps = eps
        self._function = function("invariant_norm", instruction_set)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        self._function(
            len(x), x.shape[1], x.data_ptr(), self._weight.data_ptr(), self._eps, out.data_ptr()
        )
        return out


class Scratch:
    """Memory that the layers of a model use one after another."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = torch.empty(0)

    def room(self, floats: int) -> int:
        """Address of room for `floats` floats; earlier contents are lost."""
        if floats > len(self._held):
            self._held = torch.empty(floats)
        return self._held.data_ptr()


class InvariantLayer:
    """A decoder layer."""

    __slots__ = (
        "_address",
        "_floats",
        "_function",
        "_held",
        "_query_floats",
        "_scratch",
        "_threads",
        "_token_floats",
        "_window",
    )

    def __init__(
        self, parts: InvariantLayerParts, instruction_set: str, threads: int, scratch: Scratch
    ) -> None:
        linears = (parts.projection, parts.out, parts.gate_up, parts.down)
        projection, out, _, down = _own(linears)
        attention = struct_of(parts.attention)
        norms = [parts.norm_weight.float(), parts.second_norm_weight.float()]
        made = _Struct(
            out.outputs,
            down.inputs,
            ctypes.addressof(attention),
            *map(address, norms),
            parts.norm_eps,
            parts.second_norm_eps,
            *(linear.struct for linear in _own(linears)),
        )
        self._held = (parts, attention, norms, made)
        self._address = ctypes.addressof(made)
        self._window = parts.attention.window
        self._threads = threads
        self._function = function("invariant_layer", instruction_set)
        self._token_floats = projection.outputs
        self._query_floats = out.inputs
        self._floats = PIECE_ROWS * (2 * out.outputs + 3 * down.inputs)
        self._scratch = scratch

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: StepKeys,
        tokens: torch.Tensor | None = None,
        adapters: LayerAdapters | None = None,
    ) -> torch.Tensor:
        count = len(hidden)
        queries = len(keys.positions)
        out = hidden.new_empty(queries, hidden.shape[1])
        where = _place_of(keys, self._window)
        added = None if adapters is None else _added(adapters)
        floats = self._floats + count * self._token_floats + queries * self._query_floats
        self._function(
            self._address,
            self._threads,
            count,
            queries,
            hidden.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            address(tokens),
            ctypes.addressof(where),
            None if added is None else ctypes.addressof(added),
            out.data_ptr(),
            self._scratch.room(floats),
        )
        return out


def _own(linears: tuple[object, ...]) -> list[InvariantLinear]:
    """Linear layers of this library. Raises TypeError for those of another."""
    found = [linear for linear in linears if isinstance(linear, InvariantLinear)]
    if len(found) < len(linears):
        raise TypeError("a layer of step kernels 'cpu' needs linear layers that they made, too")
    return found


def _added(adapters: LayerAdapters) -> _LayerAdapters:
    """Raises TypeError for kernels of another library."""
    *kernels, slots, query_slots = adapters
    addresses = []
    for kernel in kernels:
        if kernel is not None and not isinstance(kernel, LowRank):
            raise TypeError("a layer of step kernels 'cpu' needs adapters that they made, too")
        addresses.append(None if kernel is None else kernel.address)
    return _LayerAdapters(*addresses, slots.data_ptr(), query_slots.data_ptr())


def _place_of(keys: StepKeys, window: int) -> ctypes.Structure:
    return _StepKeys(
        keys.blocks.data_ptr(),
        keys.blocks.shape[2],
        keys.blocks.dtype == torch.bfloat16,
        keys.slots.data_ptr(),
        keys.table.data_ptr(),
        keys.table.shape[1],
        keys.positions.data_ptr(),
        keys.begins.data_ptr(),
        keys.counts.data_ptr(),
        keys.lines.data_ptr(),
        len(keys.begins),
        window,
    )


class Invariant(InvariantKernels):
    """See `StepKernels.invariant`."""

    def __init__(self, instruction_set: str, threads: int) -> None:
        self._instruction_set = instruction_set
        self._threads = threads
        self._scratch = Scratch()

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> InvariantLinear:
        return InvariantLinear(weight, bias, self._instruction_set, self._threads)

    def norm(self, weight: torch.Tensor, eps: float) -> InvariantNorm:
        return InvariantNorm(weight, eps, self._instruction_set)

    def layer(self, parts: InvariantLayerParts) -> InvariantLayer | None:
        if not can_attend(parts.attention):
            return None
        return InvariantLayer(parts, self._instruction_set, self._threads, self._scratch)
