"""The quantisation `gptq`: checkpoints as GPTQModel and AutoGPTQ write them. Worker process.

https://arxiv.org/abs/2210.17323 is the method, https://github.com/ModelCloud/GPTQModel has the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_quantisations.bits import WIDTHS, WORD_BITS, unpacked
from tenonry_quantisations.checkpoint import CheckpointQuantisation
from tenonry_quantisations.headers import FLOATS, Parts, entry, group_size_of
from tenonry_torch_base.quantisations import QuantisedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_hf_hub import StoredTensor

FIRST = "gptq"
FORMATS = (FIRST, "gptq_v2")
# Subtracted from the zero points of a word by the first format: 1 of each, with borrows from the next.
TAKEN_OFF = {4: 0x11111111, 8: 0x01010101}


class Gptq(CheckpointQuantisation):
    """Tensors of a matrix [out, in]: `qweight` int32[in · bits / 32, out] along the inputs, `qzeros` int32[groups, out
    · bits / 32] along the outputs, `scales` [groups, out], `g_idx` int32[in], the group of each input. The older of the
    two formats has zero points reduced by 1.
    """

    name = "gptq"
    parts = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        given = config or {}
        self.bits: int = entry(given, "bits", WIDTHS, 4, self.name)
        self.group_size = group_size_of(given, self.name, 128)
        format_of = "format" if "format" in given else "checkpoint_format"
        named = {format_of: str(given.get(format_of) or FIRST).lower()}
        is_first = entry(named, format_of, FORMATS, FIRST, self.name) == FIRST
        self.taken_off = TAKEN_OFF[self.bits] if is_first else 0
        if given.get("dynamic"):
            raise ModelError(
                "quantization_config: dynamic of gptq gives layers bits of their own, which is not read; take a model "
                "with the same bits everywhere"
            )

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "gptq"

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        parts = Parts(name, stored)
        each = WORD_BITS // self.bits
        words, rows = parts.shape("qweight", ("I32",))
        columns = words * each
        groups = parts.num_groups(columns, self.group_size)
        parts.expect("scales", FLOATS, (groups, rows))
        parts.expect("qzeros", ("I32",), (groups, -(-rows // each)))
        if parts.has("g_idx"):
            parts.expect("g_idx", ("I32", "I64"), (columns,))
        return rows, columns

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        values = unpacked(tensors["qweight"].t(), self.bits)
        rows, columns = values.shape
        scales = tensors["scales"].t().float().contiguous()
        zeros = unpacked(tensors["qzeros"] + self.taken_off, self.bits)[:, :rows].t().short()
        return QuantisedWeight(
            bits=self.bits,
            values=values,
            scales=scales,
            zeros=zeros.contiguous() if zeros.any() else None,
            group_of=self._groups(name, tensors.get("g_idx"), columns, scales.shape[1]),
        )

    def _groups(
        self, name: str, found: torch.Tensor | None, columns: int, num_groups: int
    ) -> torch.Tensor | None:
        """The group of each column; None where neighbours share one, in order."""
        if found is None:
            return None
        if found.min() < 0 or found.max() >= num_groups:
            raise ModelError(
                f"{name}.g_idx has values from {int(found.min())} to {int(found.max())}, and there are {num_groups} "
                "groups; download the model again"
            )
        plain = torch.arange(columns) // (columns // num_groups)
        return None if torch.equal(found.long(), plain) else found.long()
