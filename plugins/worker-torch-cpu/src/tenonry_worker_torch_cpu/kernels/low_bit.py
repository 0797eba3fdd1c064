"""Kernels of linear layers over quantised matrices, instead of those of a quantisation. Worker process.

A kernel serves any number of rows, so nothing is stored twice: the quantisation's own layer is made only for a trial of
some outputs, once for each kind of matrix. A matrix already in the kernel's layout is compared with its floats.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from tenonry.errors import ModelError
from tenonry_torch_base.kernel_parts import LowBitParts
from tenonry_torch_base.low_bit import LowBitWeight, low_bit_weight, matrix_of
from tenonry_torch_base.quantisations import QuantisedLinear
from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser, listed
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tenonry_torch_base.quantisations import Quantisation, QuantisedWeight
    from tenonry_torch_base.step_kernels import LowBitKernel
    from tenonry_worker_torch.fuse.decoder import FusedForward
    from tenonry_worker_torch.fuse.linear import DenseLinear, Linear, PartedLinear
    from tenonry_worker_torch.step_kernels import FoundKernels

    Stored = QuantisedWeight | LowBitWeight

SAMPLE = 4096  # outputs of a trial
STORED_SAMPLE = 512  # outputs of a comparison without timing
TRIES = 3  # other processes slow down either side; without its kernel a matrix takes up to twice as long
LIMIT_S = 0.6  # for all trials of a model together
LOW_BIT = "quantised linear"


class LowBitLayer(QuantisedLinear):
    """A linear layer that is a kernel. `weight`: for kernels of whole layers, and for the way back."""

    def __init__(self, weight: LowBitWeight, kernel: LowBitKernel) -> None:
        self.weight = weight
        self.kernel = kernel

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x.contiguous())

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self.kernel(x.contiguous(), other.contiguous())

    def packed(self, packing: object = None) -> QuantisedLinear:
        return packing.own(self.weight) if isinstance(packing, WithoutKernels) else self


class LowBitKernels:
    """Low-bit kernels of one model. Matrices of one kind are tried once."""

    def __init__(self, found: FoundKernels, quantisation: Quantisation, dtype: torch.dtype) -> None:
        self.found = found
        self.quantisation = quantisation
        self.dtype = dtype
        self._chooser = KernelChooser(found, LIMIT_S)
        self.counts = self._chooser.counts
        self.left = self._chooser.left  # matrices that stay with the quantisation

    def layer(self, weight: Stored, bias: torch.Tensor | None) -> LowBitLayer | None:
        """Return the kernel of a layer; None without one, or if it is wrong or slower."""
        rows, columns = weight.shape
        shape = (weight.bits, rows, columns, weight.num_groups, bias is None, weight.has_offsets)
        trial = partial(self._is_better, weight, bias)
        is_better = self._chooser.verdict((LOW_BIT, *shape), trial)
        made = self._made(weight, bias) if is_better else None
        counts = self.left if made is None else self.counts
        counts[f"{rows}×{columns} of {weight.bits} bits"] += 1
        return made

    def leave_to_quantisation(self, fused: FusedForward) -> None:
        """Restore the quantisation's own layers everywhere."""
        fused.pack(WithoutKernels(self.quantisation, self.dtype))
        self.left.update(self.counts)
        self.counts.clear()

    @property
    def text(self) -> str:
        """Text for the end of a log line."""
        text = f"linear, any rows: {listed(self.counts) or 'none'}"
        if not self.left:
            return text
        return f"{text}; by quantisation {self.quantisation.name}: {listed(self.left)}"

    def _made(self, weight: Stored, bias: torch.Tensor | None) -> LowBitLayer | None:
        blocks: LowBitWeight | None
        if isinstance(weight, LowBitWeight):
            blocks = replace(weight, bias=None if bias is None else bias.detach().float())
        else:
            blocks = low_bit_weight(weight, bias)
        if blocks is None:
            return None
        blocks = replace(blocks, input_bits=self.quantisation.input_bits)
        kernel = self._chooser.make(LowBitParts(blocks))
        return None if kernel is None else LowBitLayer(blocks, kernel)

    def _is_better(self, weight: Stored, bias: torch.Tensor | None) -> bool:
        """Return True if the kernel is correct, and faster for one row than the quantisation's own layer.

        A matrix that is in the kernel's layout already is only compared: any other layer needs another copy of it.
        """
        is_stored = isinstance(weight, LowBitWeight)
        size = STORED_SAMPLE if is_stored else SAMPLE
        sample = _sample(weight, size)
        start = None if bias is None else bias[:size]
        made = self._made(sample, start)
        own: Callable[[torch.Tensor], torch.Tensor] | None
        if is_stored:
            own = _in_floats(sample, start, self.dtype)
        else:
            own = self.quantisation.linear(matrix_of(sample), start, self.dtype)
        if made is None or own is None:
            return False
        is_timed = self._chooser.is_timed and not is_stored
        trial = self._chooser.rows_trial(partial(self._candidates, own, made), is_timed=is_timed)
        return any(trial() for _ in range(TRIES))

    def _candidates(
        self, own: Callable[[torch.Tensor], torch.Tensor], made: LowBitLayer, count: int
    ) -> Candidates:
        x = torch.randn(count, made.weight.inputs).to(self.dtype)
        return Candidates(lambda: (own(x),), lambda: (made(x),), self.quantisation.tolerance)


def _sample(weight: Stored, size: int) -> Stored:
    """The first outputs of a matrix."""
    if isinstance(weight, LowBitWeight):
        return weight.rows(0, min(size, weight.outputs))
    zeros = None if weight.zeros is None else weight.zeros[:size]
    return replace(weight, values=weight.values[:size], scales=weight.scales[:size], zeros=zeros)


def _in_floats(
    weight: Stored, bias: torch.Tensor | None, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """The layer of these outputs, computed in float32."""
    numbers = matrix_of(weight).dequantised()
    offset = None if bias is None else bias.float()
    return lambda x: functional.linear(x.float(), numbers, offset).to(dtype)


class WithoutKernels:
    """A packing that returns each quantised matrix to its quantisation, and leaves the rest unchanged."""

    def __init__(self, quantisation: Quantisation, dtype: torch.dtype) -> None:
        self.quantisation = quantisation
        self.dtype = dtype

    def own(self, weight: LowBitWeight) -> QuantisedLinear:
        """Return the quantisation's layer for the kernel's matrix. Raises ModelError without one."""
        bias = None if weight.bias is None else weight.bias.to(self.dtype)
        with torch.inference_mode(False), torch.no_grad():
            made = self.quantisation.linear(weight.matrix(), bias, self.dtype)
        if made is None:
            raise ModelError(
                f"quantization={self.quantisation.name} makes no layer of a matrix {weight.outputs}×{weight.inputs}, "
                "for which a step kernel had been taken; use --worker-option step_kernels=none"
            )
        return made

    def dense(self, linear: DenseLinear) -> Linear:
        return linear

    def parted(self, linear: PartedLinear) -> Linear:
        return linear

    def module(self, _linear: nn.Linear) -> None:
        return None
