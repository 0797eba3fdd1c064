"""Interface of weight quantisations, and their common quantised matrix; the extension point `tenonry.quantisations`.
Worker process.

An implementation either quantises a model's weights at load, or reads the quantised matrices of a checkpoint. The
worker runs the model's own code once on the original (or dequantised) matrices, and compares the results of the
quantised linear layers with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch

from tenonry.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenonry_hf_hub import StoredTensor


class StoredBlocks(NamedTuple):
    """A matrix in blocks of a GGUF file, of a `kind` such as "Q4_K": `octets` uint8[out, bytes], contiguous."""

    kind: str
    octets: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedWeight:
    """A matrix [out, in]: (`values` − `zeros`) · `scales`.

    `values` int8[out, in], of `bits` bits, or float8_e4m3fn[out, in] without zeros. `scales` float32 [out, groups]:
    each for an equal number of adjacent columns, or for those assigned by `group_of` i64[in]. `zeros` [out, groups],
    integers or float32; None if all are 0.
    """

    bits: int
    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    group_of: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.values.shape
        return rows, columns

    @property
    def num_groups(self) -> int:
        return self.scales.shape[1]

    @property
    def has_offsets(self) -> bool:
        """True with zero points."""
        return self.zeros is not None

    @property
    def num_bytes(self) -> int:
        """Size in a packed layout."""
        count = self.values.numel() * self.bits // 8 + 4 * self.scales.numel()
        return count if self.zeros is None else count + self.zeros.nbytes

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        zeros, group_of = self.zeros, self.group_of
        return replace(
            self,
            values=self.values.to(device),
            scales=self.scales.to(device),
            zeros=None if zeros is None else zeros.to(device),
            group_of=None if group_of is None else group_of.to(device),
        )

    def dequantised(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The matrix as numbers, rounded to `dtype` once."""
        rows, columns = self.shape
        if self.group_of is not None:
            scales = self.scales[:, self.group_of]
            zeros = None if self.zeros is None else self.zeros[:, self.group_of]
            values = self.values.float() if zeros is None else self.values.float() - zeros
            return values.mul_(scales).to(dtype)
        made = self.values.float().view(rows, self.num_groups, -1)
        if self.zeros is not None:
            made -= self.zeros[:, :, None]
        return made.mul_(self.scales[:, :, None]).view(rows, columns).to(dtype)

    @classmethod
    def side_by_side(cls, weights: Sequence[Self]) -> Self | None:
        """Concatenate outputs of layers with the same input; None if they are too different."""
        first = weights[0]
        if len(weights) == 1:
            return first
        kinds = {(each.bits, each.num_groups, each.zeros is None) for each in weights}
        orders = [each.group_of for each in weights]
        if len(kinds) > 1 or not all(_is_same(order, first.group_of) for order in orders):
            return None
        zeros = [each.zeros for each in weights if each.zeros is not None]
        return replace(
            first,
            values=torch.cat([each.values for each in weights]),
            scales=torch.cat([each.scales for each in weights]),
            zeros=torch.cat(zeros) if zeros else None,
        )


def zero_points(scales: torch.Tensor, minimums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points of groups whose numbers are value · scale + minimum.

    A scale negligible compared with its minimum is replaced by one with a finite zero point. NaN stays NaN.
    """
    least = minimums.abs() * torch.finfo(torch.float32).eps
    scales = torch.where(scales.abs() <= least, least, scales)
    return scales, torch.where(scales == 0, 0.0, -minimums / scales)


def _is_same(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)


class QuantisedLinear(ABC):
    """Replacement for a linear layer with floats. It stores its own form of the matrix, which never changes."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [N, in] → [N, out] of the same type, for any N, 0 included; a row depends on no other row."""

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the result plus `other` [N, out], which is not changed."""
        return self(x).add_(other)

    def packed(self, _packing: object = None) -> Self:
        """Return itself: its layout is already final."""
        return self


class Quantisation(ABC):
    """One quantisation method.

    `tolerance`: the largest relative error (L2) of a model's hidden states and logits that is accepted as rounding,
    compared with the original weights passed to `quantise`, or with dequantised ones. `parts`: the endings of the
    tensors that a checkpoint holds for a matrix `NAME.weight`, such as "qweight"; none if it reads no checkpoints.
    `input_bits`: see `LowBitWeight`, where a step kernel multiplies.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    tolerance: ClassVar[float]
    parts: ClassVar[tuple[str, ...]] = ()
    input_bits: ClassVar[int] = 8

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        """`config`: a checkpoint's `quantization_config` accepted by `reads`; None to quantise at load.

        Raises ModelError that names the entry for unsupported values.
        """
        self.config = config

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        """Return True if a checkpoint with this `quantization_config` is one of its format."""
        return False

    @classmethod
    @abstractmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return the reason why its layers do not compute on this device in this type; None if they do."""

    def quantise(self, weight: torch.Tensor) -> QuantisedWeight:
        """Quantise floats [out, in] at load. Raises ConfigError for a format of checkpoints only."""
        raise ConfigError(
            f"quantization={self.name} reads checkpoints; it cannot quantise weights at load"
        )

    def is_matrix(self, stored: Mapping[str, StoredTensor]) -> bool:
        """Return True if a module's stored tensors, by ending, are a quantised matrix. A lone `weight` is floats,
        unless the format stores a whole matrix in it.
        """
        return stored.keys() != {"weight"}

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        """(outputs, inputs) of the matrix of module `name`, from the headers of its stored tensors, by ending.

        Raises ModelError that names a tensor which is missing, of another type, or inconsistent with the others.
        """
        raise NotImplementedError

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        """The matrix itself, of tensors that `shape` took. Raises ModelError that names a tensor with bad values."""
        raise NotImplementedError

    def blocks(self, name: str, tensors: Mapping[str, torch.Tensor]) -> StoredBlocks | None:
        """Return the matrix in GGUF layout, for kernels; None for another storage."""
        return None

    @abstractmethod
    def linear(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
    ) -> QuantisedLinear | None:
        """Return the layer of a matrix, for inputs of this type; None to use dequantised floats."""
