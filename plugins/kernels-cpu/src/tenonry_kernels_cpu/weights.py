"""Weights in the layouts of the kernels. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    import torch

COLUMN_MULTIPLE = 16  # as in native/vectors.h


def filled_up(columns: int) -> int:
    """The next multiple of `COLUMN_MULTIPLE`."""
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE


def by_input(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [..., outputs, inputs] → [..., inputs, outputs filled up with zeros], contiguous."""
    turned = weight.transpose(-1, -2)
    missing = filled_up(turned.shape[-1]) - turned.shape[-1]
    return functional.pad(turned, (0, missing)).contiguous()


def address(tensor: torch.Tensor | None) -> int:
    """Address of the first element; 0, which is NULL, for none."""
    return 0 if tensor is None else tensor.data_ptr()
