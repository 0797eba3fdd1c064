"""Sources of new weights: a safetensors file, a folder of them, or POSIX shared memory that holds such a file. Worker
process.

Tensors are read, never mapped: a file that is truncated during the read is an error here, and does not kill the
process.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_hf_hub import StoredTensor, WeightFiles, list_weights, read_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARED_MEMORY = "shm:"
SHARED_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - what shm_open names
SHARED_MEMORY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_source(source: str, names: Sequence[str] | None) -> dict[str, StoredTensor]:
    """Name → where, of all tensors of a source, or of those that `names` lists. No tensor is read.

    Raises ModelError that names the source and the tensor: nothing there, a part of a file, a name that it lacks.
    """
    found = read_headers(files_of(source))
    if names is not None:
        lacking = sorted(set(names) - found.keys())
        if lacking:
            raise ModelError(f"{source} does not hold {lacking[0]!r}; it has {_some(found)}")
        found = {name: found[name] for name in names}
    if not found:
        raise ModelError(f"{source} names no tensor; give one with the weights to replace")
    for file in {tensor.file for tensor in found.values()}:
        _check_end(file, found)
    return found


def files_of(source: str) -> WeightFiles:
    """The safetensors files of a source. Raises ModelError."""
    if source.startswith(SHARED_MEMORY):
        return WeightFiles((_shared_memory(source.removeprefix(SHARED_MEMORY)),), None)
    path = Path(source)
    if path.is_dir():
        return list_weights(path)
    if path.suffix != ".safetensors":
        raise ModelError(
            f"{source} is neither a folder nor a .safetensors file, and no other kind is read; give one, or "
            f"{SHARED_MEMORY}NAME for shared memory that holds such a file"
        )
    return WeightFiles((path,), None)


def _shared_memory(name: str) -> Path:
    """The segment `name`, as `shm_open` would find it. Raises ModelError."""
    if not SHARED_MEMORY_NAME.fullmatch(name):
        raise ModelError(
            f"{name[:80]!r} is no name of shared memory; use letters, digits, '_', '.' and '-', such as new-weights"
        )
    if not sys.platform.startswith("linux"):
        raise ModelError(f"shared memory by name is read on Linux only, not on {sys.platform}")
    path = SHARED_MEMORY_FOLDER / name
    try:
        kind = path.lstat().st_mode
    except OSError as error:
        raise ModelError(f"shared memory {name!r} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(kind):
        raise ModelError(f"{path} is no shared memory")
    return path


def _check_end(file: Path, tensors: dict[str, StoredTensor]) -> None:
    """Raises ModelError when one of the tensors is not wholly there."""
    size = file.stat().st_size
    for name, tensor in tensors.items():
        if tensor.file == file and tensor.end > size:
            raise ModelError(f"{file} has {size} bytes, and tensor {name} ends at {tensor.end}")
        if tensor.dtype not in DTYPES:
            raise ModelError(
                f"{file}: tensor {name} is {tensor.dtype}; weights are one of {', '.join(DTYPES)}"
            )


def _some(found: dict[str, StoredTensor]) -> str:
    names = sorted(found)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class StoredSlice:
    """One tensor of a safetensors file, read as a whole whenever it is indexed."""

    __slots__ = ("_name", "_tensor")

    def __init__(self, name: str, tensor: StoredTensor) -> None:
        self._name = name
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._read()[index]

    def _read(self) -> torch.Tensor:
        """Raises ModelError when the file has become shorter."""
        tensor = self._tensor
        data = bytearray(tensor.num_bytes)
        with tensor.file.open("rb", buffering=0) as file:
            file.seek(tensor.begin, os.SEEK_SET)
            rest = memoryview(data)
            while rest:
                count = file.readinto(rest)
                if not count:
                    raise ModelError(
                        f"{tensor.file}: tensor {self._name} ends at byte {tensor.end}, and the file was truncated "
                        "after its header was read; write the file again"
                    )
                rest = rest[count:]
        dtype = DTYPES[tensor.dtype]
        if not data:
            return torch.empty(tensor.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).view(tensor.shape)
