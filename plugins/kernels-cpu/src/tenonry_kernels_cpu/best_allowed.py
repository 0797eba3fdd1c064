"""The kernel that looks for the best token that a mask allows. Worker process."""

from __future__ import annotations

import torch

from tenonry_kernels_cpu.library import function


class BestAllowed:
    """See `BestAllowedParts`."""

    __slots__ = ("_function",)

    def __init__(self, instruction_set: str) -> None:
        self._function = function("best_allowed", instruction_set)

    def __call__(
        self, logits: torch.Tensor, masks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, words = masks.shape
        ids = torch.empty(rows, dtype=torch.int64)
        best = torch.empty(rows)
        self._function(
            rows,
            words,
            logits.data_ptr(),
            masks.data_ptr(),
            int(logits.dtype == torch.bfloat16),
            ids.data_ptr(),
            best.data_ptr(),
        )
        return ids, best
