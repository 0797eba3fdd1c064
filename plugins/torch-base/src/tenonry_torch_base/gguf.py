"""Weights of a GGUF file as numbers: each is read and dequantised on demand. Worker process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenonry.errors import ModelError
from tenonry_hf_hub import read_gguf_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tenonry_hf_hub import GgufTensor

GGUF = ".gguf"
PIECE_ELEMENTS = 1 << 20  # elements that a thread dequantises together
MAX_THREADS = 8
FLOATS: dict[str, type[np.floating]] = {"F32": np.float32, "F16": np.float16}  # need no library


def gguf_slices(
    files: Sequence[Path], in_blocks: Collection[str] = ()
) -> dict[str, GgufSlice | GgufBlocks]:
    """Name in transformers → slice, which reads its tensor when it is indexed; `in_blocks`: those not dequantised."""
    return {
        name: GgufBlocks(tensor) if name in in_blocks else GgufSlice(tensor)
        for file in files
        for name, tensor in read_gguf_tensors(file).items()
    }


class GgufSlice:
    """One tensor, as a slice of a safetensors file is one."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: GgufTensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        values = torch.from_numpy(dequantised(self._tensor))
        return in_halves(values, self._tensor.heads)[index]


class GgufBlocks:
    """One matrix as the file has it: `[...]` is uint8[rows, bytes], with the rows in transformers' order."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: GgufTensor) -> None:
        self._tensor = tensor

    def __getitem__(self, index: Any) -> torch.Tensor:
        octets = torch.from_numpy(_read(self._tensor)).view(self._tensor.shape[0], -1)
        return in_halves(octets, self._tensor.heads)[index]


def dequantised(tensor: GgufTensor) -> np.ndarray:
    """Numbers of the tensor in float32. Raises ModelError when the file was truncated, or numbers are not finite."""
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    data = _read(tensor).reshape(rows, -1)
    found = np.empty((rows, _columns(tensor)), np.float32)
    per_piece = max(PIECE_ELEMENTS // max(found.shape[1], 1), 1)
    begins = range(0, rows, per_piece)
    pieces = [(data[at : at + per_piece], found[at : at + per_piece]) for at in begins]
    if not all(_filled(tensor.kind, pieces)):
        raise ModelError(
            f"{tensor.file.resolve()}: tensor {tensor.stored_name} holds numbers that are not finite; download the "
            "file again"
        )
    return found.reshape(tensor.shape)


def _columns(tensor: GgufTensor) -> int:
    return int(np.prod(tensor.shape[1:])) if len(tensor.shape) > 1 else tensor.shape[0]


def _filled(kind: str, pieces: list[tuple[np.ndarray, np.ndarray]]) -> list[bool]:
    """Dequantise pieces of rows; returns True for each with only finite numbers."""
    if len(pieces) == 1:
        return [_fill(kind, *pieces[0])]
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(lambda piece: _fill(kind, *piece), pieces))


def _fill(kind: str, data: np.ndarray, found: np.ndarray) -> bool:
    """Dequantise some rows; returns True if all numbers are finite."""
    with np.errstate(all="ignore"):  # non-finite scales are detected below
        found[:] = _numbers(kind, data)
    return bool(np.isfinite(found).all())


def _numbers(kind: str, data: np.ndarray) -> np.ndarray:
    if kind in FLOATS:
        return data.view(FLOATS[kind])
    from gguf import GGMLQuantizationType, dequantize

    return dequantize(data, GGMLQuantizationType[kind])


def _read(tensor: GgufTensor) -> np.ndarray:
    """Stored bytes of a tensor: a copy, since a mapped file that is truncated later would end the process."""
    data = np.empty(tensor.end - tensor.begin, np.uint8)
    rest = memoryview(data)
    with tensor.file.open("rb", buffering=0) as file:
        file.seek(tensor.begin)
        while rest:
            count = file.readinto(rest)
            if not count:
                raise ModelError(
                    f"{tensor.file.resolve()}: tensor {tensor.stored_name} ends at byte {tensor.end}, and the file was "
                    "truncated after its header was read; download the file again"
                )
            rest = rest[count:]
    return data


def in_halves(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of query and key in transformers' order: for each head the first numbers of all rotated pairs, and then the
    second ones. In the file, pairs are adjacent.
    """
    if not heads:
        return values
    pairs = values.view(heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
