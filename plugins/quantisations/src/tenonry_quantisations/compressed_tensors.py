"""The quantisation `compressed-tensors`: checkpoints as LLM Compressor writes them, in integers of 4 and 8 bits. Worker
process.

https://github.com/vllm-project/compressed-tensors has the format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_quantisations.bits import WIDTHS, WORD_BITS, unpacked
from tenonry_quantisations.checkpoint import CheckpointQuantisation
from tenonry_quantisations.fp8 import Fp8
from tenonry_quantisations.headers import FLOATS, REMEDY, Parts, entry, group_size_of
from tenonry_torch_base.quantisations import QuantisedWeight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_hf_hub import StoredTensor

PACKED = "pack-quantized"
FORMATS = ("int-quantized", "naive-quantized", PACKED)
STRATEGIES = ("channel", "group", "tensor")
DENSE = ("dense", None)
OTHERS = "take a model in int8, in int4 by groups, or with its floats"


class CompressedTensors(CheckpointQuantisation):
    """Tensors of a matrix [out, in]: `weight` int8[out, in], or `weight_packed` int32[out, in · bits / 32] with
    `weight_shape`; `weight_scale` [out, groups], or one number; `weight_zero_point` as the scales, packed along the
    outputs where the matrix is packed; `weight_g_idx` [in], the group of each input.

    Settings for inputs are ignored: they are rounded to 8 bits if the layers do so.
    """

    name = "compressed-tensors"
    parts = (
        "weight",
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
    )

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        given = config or {}
        entry(given, "format", FORMATS, "int-quantized", self.name)
        sparsity = (given.get("sparsity_config") or {}).get("format")
        if sparsity not in DENSE or given.get("transform_config"):
            kind = "sparsity_config" if sparsity not in DENSE else "transform_config"
            raise ModelError(f"quantization_config: {kind} of {self.name} is not read; {OTHERS}")
        schemes = [_weights_of(key, group) for key, group in _groups_of(given).items()]
        kinds = {(each["num_bits"], each["strategy"], each.get("group_size")) for each in schemes}
        if len(kinds) != 1:
            raise ModelError(
                f"quantization_config: config_groups of {self.name} have {len(kinds)} kinds of weights, and one is "
                f"read; {OTHERS}"
            )
        scheme = schemes[0]
        self.bits: int = scheme["num_bits"]
        self.is_symmetric = bool(scheme.get("symmetric", True))
        self.strategy: str = scheme["strategy"]
        self.group_size = -1
        if self.strategy == "group":
            self.group_size = group_size_of(scheme, self.name, 128)

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        if Fp8.reads(config):
            return False
        method = config.get("quant_method")
        return method == cls.name or (method is None and "config_groups" in config)

    def shape(self, name: str, stored: Mapping[str, StoredTensor]) -> tuple[int, int]:
        parts = Parts(name, stored)
        is_packed = parts.has("weight_packed")
        if is_packed:
            rows, words = parts.shape("weight_packed", ("I32",))
            columns = words * (WORD_BITS // self.bits)
            parts.expect("weight_shape", ("I64", "I32"), (2,))
        else:
            rows, columns = parts.shape("weight", ("I8",))
        groups = parts.num_groups(columns, self.group_size)
        scales = (rows, groups)
        if self.strategy == "tensor":
            scales = (1,)
        elif parts.has("weight_scale") and len(stored["weight_scale"].shape) == 1:
            scales = (rows,)
        parts.expect("weight_scale", FLOATS, scales)
        if not self.is_symmetric:
            zeros = scales
            if is_packed:
                zeros = (-(-rows * self.bits // WORD_BITS), groups)
            parts.expect("weight_zero_point", ("I32",) if is_packed else ("I8",), zeros)
        if parts.has("weight_g_idx"):
            parts.expect("weight_g_idx", ("I32", "I64"), (columns,))
        return rows, columns

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor]) -> QuantisedWeight:
        packed = tensors.get("weight_packed")
        if packed is None:
            values = tensors["weight"]
        else:
            values = unpacked(packed, self.bits)
            said = tensors["weight_shape"].tolist()
            if list(values.shape) != said:
                raise ModelError(
                    f"{name}.weight_shape is {said}, and {name}.weight_packed is "
                    f"{list(values.shape)}; {REMEDY}"
                )
        rows, columns = values.shape
        scales = tensors["weight_scale"].float().view(-1, self._num_groups(columns))
        return QuantisedWeight(
            bits=self.bits,
            values=values,
            scales=scales.expand(rows, -1).contiguous(),
            zeros=self._zeros(tensors, rows, scales.shape[1]),
            group_of=self._groups(name, tensors.get("weight_g_idx"), scales.shape[1]),
        )

    def _num_groups(self, columns: int) -> int:
        return 1 if self.group_size == -1 else columns // self.group_size

    def _zeros(
        self, tensors: Mapping[str, torch.Tensor], rows: int, num_groups: int
    ) -> torch.Tensor | None:
        if self.is_symmetric:
            return None
        stored = tensors["weight_zero_point"]
        if "weight_packed" in tensors:
            stored = unpacked(stored.t(), self.bits)[:, :rows].t()
        zeros = stored.reshape(-1, num_groups).expand(rows, -1).short().contiguous()
        return zeros if zeros.any() else None

    def _groups(
        self, name: str, found: torch.Tensor | None, num_groups: int
    ) -> torch.Tensor | None:
        """The group of each column; None where neighbours share one, in order."""
        if found is None or bool((found == -1).all()):
            return None
        if found.min() < 0 or found.max() >= num_groups:
            raise ModelError(
                f"{name}.weight_g_idx has values from {int(found.min())} to {int(found.max())}, and there are "
                f"{num_groups} groups; download the model again"
            )
        plain = torch.arange(len(found)) // (len(found) // num_groups)
        return None if torch.equal(found.long(), plain) else found.long()


def _groups_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("config_groups")
    if not isinstance(found, dict) or not found:
        raise ModelError(
            "quantization_config: config_groups of compressed-tensors is missing or empty, so "
            f"the weight format is unknown; {REMEDY}"
        )
    return found


def _weights_of(key: str, group: Any) -> dict[str, Any]:
    """The scheme of the weights of one group. Raises ModelError for one that is not read."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise ModelError(f"quantization_config: config_groups.{key} has no weights; {OTHERS}")
    name = f"config_groups.{key}.weights"
    entry(weights, "type", ("int",), "int", name)
    entry(weights, "num_bits", WIDTHS, 8, name)
    strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
    entry({"strategy": strategy}, "strategy", STRATEGIES, "tensor", name)
    return {"num_bits": 8, **weights, "strategy": strategy}
