"""Quantised matrices of a checkpoint, presented as floats. Worker process.

Code that reads checkpoints, splits tensors over ranks or compares shapes needs no change; the stored parts are kept
alongside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_hf_hub import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tenonry_torch_base.quantisations import Quantisation, QuantisedWeight, StoredBlocks

GGUF = ".gguf"  # whose tensors of any kind can be dequantised
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
PLAIN = "weight"


class StoredMatrices:
    """Quantised matrices of one checkpoint. `parts`: checkpoint name "X.weight" → ending → location. `read`: those read
    so far.

    `postponed`: names of matrices that are not read as numbers, but later, from `unread`; their slices are tensors of
    one element that is repeated, in `dtype` on `device`.
    """

    def __init__(self, quantisation: Quantisation) -> None:
        self.quantisation = quantisation
        self.parts: dict[str, dict[str, StoredTensor]] = {}
        self.read: dict[str, QuantisedWeight] = {}
        self.postponed: frozenset[str] = frozenset()
        self.dtype: torch.dtype | None = None
        self.device: torch.device | None = None
        self.unread: dict[str, MatrixSlice] = {}

    def name_of(self, key: str) -> str:
        """Name of the matrix that may contain the tensor `key`; `key` itself for others."""
        prefix, _, ending = key.rpartition(".")
        return f"{prefix}.{PLAIN}" if prefix and ending in self.quantisation.parts else key

    def gather(self, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Stored tensors, with each quantised matrix as one tensor of floats. Raises ModelError naming the defect."""
        found: dict[str, dict[str, StoredTensor]] = {}
        seen = {}
        for key, tensor in stored.items():
            name = self.name_of(key)
            if name == key and not key.endswith(f".{PLAIN}"):
                seen[key] = tensor
            else:
                found.setdefault(name, {})[key.rpartition(".")[2]] = tensor
        for name, parts in found.items():
            if not self.quantisation.is_matrix(parts):
                seen[name] = self._plain(name, parts[PLAIN])
                continue
            shape = self.quantisation.shape(name.rpartition(".")[0], parts)
            first = next(iter(parts.values()))
            seen[name] = first._replace(dtype="F32", shape=shape)
            self.parts[name] = parts
        if not self.parts:
            name = self.quantisation.name
            raise ModelError(
                f"config.json says that weights are stored as {name}, and no file holds tensors that end in one of "
                f"{', '.join(self.quantisation.parts)}; download the model again, or take quantization_config out of "
                "config.json"
            )
        return seen

    def _plain(self, key: str, tensor: StoredTensor) -> StoredTensor:
        if tensor.dtype not in FLOATS and tensor.file.suffix != GGUF:
            lacking = ", ".join(part for part in self.quantisation.parts if part != PLAIN)
            raise ModelError(
                f"{tensor.file}: tensor {key} is {tensor.dtype}, and none of {lacking} is stored beside it, so its "
                f"numbers are not known; download the model again"
            )
        return tensor


class MatrixSlice:
    """One matrix with the interface of a float slice: read as a whole whenever it is indexed."""

    __slots__ = ("_key", "_matrices", "_shape", "_slices")

    def __init__(
        self, matrices: StoredMatrices, key: str, shape: tuple[int, ...], slices: Mapping[str, Any]
    ) -> None:
        """`slices`: of its parts, by their endings."""
        self._matrices = matrices
        self._key = key
        self._shape = shape
        self._slices = slices

    def get_shape(self) -> list[int]:
        return list(self._shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        if self._key in self._matrices.postponed:
            import torch

            self._matrices.unread[self._key] = self
            zero = torch.zeros((), dtype=self._matrices.dtype, device=self._matrices.device)
            return zero.expand(self._shape)[index]
        weight = self.weight()
        self._matrices.read[self._key] = weight
        return weight.dequantised()[index]

    def weight(self) -> QuantisedWeight:
        """The whole matrix. Raises ModelError for bad values."""
        return self._matrices.quantisation.weight(self._name, self._tensors())

    def blocks(self) -> StoredBlocks | None:
        """The same in the file's blocks; None without blocks."""
        return self._matrices.quantisation.blocks(self._name, self._tensors())

    @property
    def _name(self) -> str:
        return self._key.rpartition(".")[0]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {ending: part[...] for ending, part in self._slices.items()}
