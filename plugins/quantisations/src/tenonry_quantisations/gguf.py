"""The quantisation `gguf`: matrices of GGUF files, in the bits that the files have. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_quantisations.blocks import KINDS, matrix
from tenonry_quantisations.checkpoint import CheckpointQuantisation
from tenonry_quantisations.headers import Parts
from tenonry_torch_base.quantisations import StoredBlocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_hf_hub import StoredTensor
    from tenonry_torch_base.quantisations import QuantisedWeight

WEIGHT = "weight"


class Gguf(CheckpointQuantisation):
    """Values keep their bits, scales and minimums. Inputs are rounded to 8 bits in groups, so in float32, where answers
    are those of the file's numbers, matrices are dequantised.
    """

    name = "gguf"
    parts = (WEIGHT,)

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self._stored: dict[str, StoredTensor] = {}

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "gguf"

    @classmethod
    def refusal(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        if dtype == torch.float32:
            return "its layers round inputs to 8 bits, and float32 is exact"
        return super().refusal(device, dtype)

    def is_matrix(self, stored: Mapping[str, StoredTensor]) -> bool:
        return stored[WEIGHT].dtype in KINDS

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        rows, columns = Parts(name, stored).shape(WEIGHT, tuple(KINDS))
        self._stored[name] = stored[WEIGHT]
        return rows, columns

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        stored = self._stored[name]
        made = matrix(KINDS[stored.dtype], tensors[WEIGHT])
        for each in (made.scales, made.zeros):
            if each is not None and not each.isfinite().all():
                raise ModelError(
                    f"{stored.file.resolve()}: tensor {name}.{WEIGHT} holds numbers that are not finite; download the "
                    "file again"
                )
        return made

    def blocks(self, name: str, tensors: Mapping[str, torch.Tensor]) -> StoredBlocks:
        return StoredBlocks(self._stored[name].dtype, tensors[WEIGHT].contiguous())
