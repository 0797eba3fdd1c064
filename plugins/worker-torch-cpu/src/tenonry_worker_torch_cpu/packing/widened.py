"""Linear layers in bfloat16 on a CPU that oneDNN does not compute it on: weights are widened to float32 piece by piece,
where torch would multiply row by row. Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from tenonry_torch_base.kernel_parts import LinearParts
from tenonry_torch_base.step_kernels import BlockedWeight, Refusal
from tenonry_worker_torch.fuse.linear import DenseLinear, is_half_on_host, mark_packed, merge
from tenonry_worker_torch_cpu.packing.onednn import OneDnnPacking, can_pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.fuse.linear import Linear, Packing, PartedLinear

PIECE = 1 << 22  # weights widened together: 16 MiB
FEW_ROWS = 8  # that torch multiplies one by one, sooner than weights are widened
BLOCK = 64  # outputs, see BlockedWeight
PAIR_MULTIPLE = 16
UPPER = -65536  # the bits of the second of two halves in a word


class BlockedLinear:
    """`weight` [outputs, inputs] in blocks, as kernels read it; the original can be dropped."""

    __slots__ = ("bias", "blocks", "shape")

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight`: in bfloat16, with an even number of inputs."""
        outputs, inputs = weight.shape
        self.shape = (outputs, inputs)
        self.bias = bias
        blocks = -(-outputs // BLOCK)
        pairs = -(-inputs // (2 * PAIR_MULTIPLE)) * PAIR_MULTIPLE
        self.blocks = weight.new_zeros(blocks, pairs, BLOCK, 2)
        words = _words(self.blocks)
        for number, rows in enumerate(weight.split(BLOCK)):
            words[number, : inputs // 2, : len(rows)] = rows.contiguous().view(torch.int32).T

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._floats(x).to(x.dtype)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self._floats(x).add_(other).to(x.dtype)

    def packed(self, _packing: Packing) -> BlockedLinear:
        return self

    def in_rows(self) -> torch.Tensor:
        """The weight [outputs, inputs]."""
        outputs, inputs = self.shape
        rows = self.blocks.new_empty(len(self.blocks) * BLOCK, inputs)
        for part, block in zip(rows.split(BLOCK), _words(self.blocks), strict=True):
            part.view(torch.int32).copy_(block[: inputs // 2].T)
        return rows[:outputs]

    def blocked(self) -> BlockedWeight:
        """The weight, for kernels."""
        outputs, inputs = self.shape
        bias = None if self.bias is None else self.bias.float()
        return BlockedWeight(outputs=outputs, inputs=inputs, blocks=self.blocks, bias=bias)

    def sample(self, outputs: int) -> BlockedLinear:
        """The first outputs, a multiple of `BLOCK`, or all: for trials."""
        if outputs >= self.shape[0]:
            return self
        made: BlockedLinear = object.__new__(BlockedLinear)
        made.shape = (outputs, self.shape[1])
        made.bias = None if self.bias is None else self.bias[:outputs]
        made.blocks = self.blocks[: outputs // BLOCK]
        return made

    def _floats(self, x: torch.Tensor) -> torch.Tensor:
        """X [N, inputs] → [N, outputs], in float32."""
        outputs, inputs = self.shape
        pairs = self.blocks.shape[1]
        given = functional.pad(x.float(), (0, 2 * pairs - inputs)).view(-1, pairs, 2)
        first, second = given.unbind(-1)
        made = []
        for words in _words(self.blocks).split(max(1, PIECE // (2 * pairs * BLOCK))):
            sums = first @ (words << 16).view(torch.float32)
            sums += second @ (words & UPPER).view(torch.float32)
            made.append(sums)
        out = torch.cat(made).transpose(0, 1).reshape(len(x), -1)[:, :outputs]
        return out if self.bias is None else out + self.bias.float()


class WidenedLinear(DenseLinear):
    """`weight` [out, in] in bfloat16 as the modules have it."""

    __slots__ = ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return widened_linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)


class WidenedModule(nn.Linear):
    """A linear layer that multiplies many rows in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias

    @staticmethod
    def side_by_side(modules: Sequence[WidenedModule]) -> WidenedLinear:
        """Modules that read the same input as one layer."""
        return WidenedPacking().dense(merge(modules))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return widened_linear(x, self.weight, self.bias)


class BlockedPacking:
    """Packing in the blocks that kernels read. The source modules of a weight lose theirs, so that nothing is stored
    twice.
    """

    def __init__(self, kernels: StepKernels) -> None:
        self.kernels = kernels

    def dense(self, linear: DenseLinear) -> Linear:
        if linear.weight.shape[1] % 2 == 0:
            with torch.inference_mode(False), torch.no_grad():
                made = BlockedLinear(linear.weight, linear.bias)
            if not isinstance(self.kernels.make(LinearParts(made.blocked())), Refusal):
                mark_packed(made, linear.sources)
                return made
        return WidenedPacking().dense(linear)

    def parted(self, linear: PartedLinear) -> Linear:
        return self.dense(merge(linear.sources))

    def module(self, linear: nn.Linear) -> WidenedModule | None:
        return WidenedPacking().module(linear)


class WidenedPacking:
    """Packing in unmodified rows."""

    def dense(self, linear: DenseLinear) -> WidenedLinear:
        return WidenedLinear(linear.weight, linear.bias, linear.sources)

    def parted(self, linear: PartedLinear) -> WidenedLinear:
        return self.dense(merge(linear.sources))

    def module(self, linear: nn.Linear) -> WidenedModule | None:
        is_half = is_half_on_host(linear.weight.dtype, linear.weight.device)
        return WidenedModule(linear) if is_half else None


def packing_for(
    dtype: torch.dtype, device: torch.device, kernels: StepKernels | None
) -> Packing | None:
    """Return the weight layout for this device; None: unchanged. `kernels`: kernels that may read the weights."""
    if can_pack(dtype, device):
        return OneDnnPacking()
    if not is_half_on_host(dtype, device):
        return None
    return WidenedPacking() if kernels is None else BlockedPacking(kernels)


def widened_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x` [..., inputs] times `weight` [outputs, inputs], all in bfloat16; many rows with sums in float32."""
    if x.numel() <= FEW_ROWS * x.shape[-1]:
        return functional.linear(x, weight, bias)
    given = x.float()
    pieces = weight.split(max(1, PIECE // weight.shape[1]))
    made = torch.cat([functional.linear(given, piece.float()) for piece in pieces], -1)
    if bias is not None:
        made += bias
    return made.to(x.dtype)


def _words(blocks: torch.Tensor) -> torch.Tensor:
    """Pairs of halves as words i32[blocks, pairs, BLOCK]; the first is the lower one."""
    return blocks.view(torch.int32)[..., 0]
