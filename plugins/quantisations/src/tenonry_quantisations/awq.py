"""The quantisation `awq`: checkpoints as AutoAWQ writes them in its layout "gemm". Worker process.

https://arxiv.org/abs/2306.00978 is the method, https://github.com/casper-hansen/AutoAWQ has the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_quantisations.bits import WORD_BITS, unpacked
from tenonry_quantisations.checkpoint import CheckpointQuantisation
from tenonry_quantisations.headers import FLOATS, Parts, entry, group_size_of
from tenonry_torch_base.quantisations import QuantisedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tenonry_hf_hub import StoredTensor

PER_WORD = 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbouring outputs each 4 bits of a word are


class Awq(CheckpointQuantisation):
    """Tensors of a matrix [out, in]: `qweight` int32[in, out / 8] and `qzeros` int32[groups, out / 8], both along the
    outputs and in an order of their own, `scales` [groups, out].
    """

    name = "awq"
    parts = ("qweight", "qzeros", "scales")

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        given = config or {}
        key = "bits" if "bits" in given else "w_bit"
        self.bits: int = entry(given, key, (4,), 4, self.name)
        if "group_size" not in given and "q_group_size" in given:
            given = {**given, "group_size": given["q_group_size"]}
        self.group_size = group_size_of(given, self.name, 128)
        self.has_zeros: bool = entry(given, "zero_point", (True, False), True, self.name)
        version = str(given.get("version") or "gemm").lower()
        entry({"version": version}, "version", ("gemm",), "gemm", self.name)

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "awq"

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        parts = Parts(name, stored)
        columns, words = parts.shape("qweight", ("I32",))
        rows = words * (WORD_BITS // self.bits)
        groups = parts.num_groups(columns, self.group_size)
        parts.expect("scales", FLOATS, (groups, rows))
        if self.has_zeros:
            parts.expect("qzeros", ("I32",), (groups, words))
        return rows, columns

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        zeros = self._outputs(tensors["qzeros"]).short() if self.has_zeros else None
        return QuantisedWeight(
            bits=self.bits,
            values=self._outputs(tensors["qweight"]),
            scales=tensors["scales"].t().float().contiguous(),
            zeros=zeros,
        )

    def _outputs(self, words: torch.Tensor) -> torch.Tensor:
        """`words` int32[n, out / 8] → int8[out, n]."""
        found = unpacked(words, self.bits)
        eights = found.view(len(found), -1, PER_WORD)
        made = eights.new_empty(eights.shape)
        for place, output in enumerate(ORDER):
            made[:, :, output] = eights[:, :, place]
        return made.view(len(found), -1).t().contiguous()
