"""Reads the headers of a model's safetensors or GGUF files, and checks that the files are complete.

Front end and workers.

No tensor is read: a truncated download, an index that names missing tensors, or two files with one tensor are detected
before anything is started.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf import read_tensors
from tenonry_hf_hub.weights import INDEX, WeightFiles

logger = logging.getLogger("tenonry.models")

MAX_HEADER_BYTES = 100 << 20
READERS = 8
PREFIX_BYTES = 8
GGUF = ".gguf"
# Bits of one element (https://github.com/huggingface/safetensors); a name that is not here is not checked.
BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
BROKEN = "is not a safetensors file, or only a part of one; download or save the model again"


class StoredTensor(NamedTuple):
    """One tensor of a checkpoint: location, type and shape. Its bytes are `begin` to `end` of `file`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


class _Entry(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_headers(
    weights: WeightFiles, is_needed: Callable[[str], bool] | None = None
) -> dict[str, StoredTensor]:
    """Tensor name → location and type, over all existing files of a model. `is_needed` is called with the name of a
    broken file; if it returns False, the tensors of that file are skipped.

    Raises ModelError that names file and tensor: a file is truncated or is none, a tensor's size does not fit its
    shape, or two files hold one tensor and there is no index. With one, the last file in order counts, as in
    transformers, which reads all tensors of the files, whatever file the index assigns to them.
    """
    with ThreadPoolExecutor(min(READERS, max(len(weights.files), 1))) as readers:
        headers = list(readers.map(partial(_header_of, is_needed), weights.files))
    found: dict[str, StoredTensor] = {}
    for header in filter(None, headers):
        for name, tensor in header.items():
            if name in found:
                _check_twice(found[name], tensor, name, has_index=weights.weight_map is not None)
            found[name] = tensor
    return found


def _check_twice(first: StoredTensor, second: StoredTensor, name: str, *, has_index: bool) -> None:
    if not has_index:
        raise ModelError(
            f"tensor {name} is in {first.file} and in {second.file.name}, and no {INDEX} says which is meant; keep the "
            "files of one checkpoint only"
        )
    logger.warning(
        "tensor %s is in %s and in %s; the latter is read", name, first.file, second.file.name
    )


def _header_of(
    is_needed: Callable[[str], bool] | None, path: Path
) -> dict[str, StoredTensor] | None:
    """None: the file is broken, and not needed."""
    try:
        return read_header(path)
    except ModelError:
        if is_needed is None or is_needed(path.name):
            raise
        return None


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file; those of a GGUF file have the names of transformers.

    Raises ModelError if it is no such file, or only a part of one.
    """
    if path.suffix == GGUF:
        return {
            name: StoredTensor(path, tensor.kind, tensor.shape, tensor.begin, tensor.end)
            for name, tensor in read_tensors(path).items()
        }
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(PREFIX_BYTES), "little")
            data = file.read(size) if size <= MAX_HEADER_BYTES else b""
        there = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    start = PREFIX_BYTES + size
    found = {}
    for name, entry in _entries(path, data).items():
        begin, end = entry.data_offsets
        tensor = StoredTensor(path, entry.dtype, entry.shape, start + begin, start + end)
        _check_size(name, tensor)
        found[name] = tensor
    last = max(found, key=lambda name: found[name].end, default=None)
    if last is not None and found[last].end > there:
        raise ModelError(
            f"{path} is truncated: tensor {last} ends at byte {found[last].end}, the file has {there}; download or "
            "save the model again"
        )
    _check_apart(found)
    return found


def _check_apart(found: dict[str, StoredTensor]) -> None:
    """Raises ModelError naming the second of two tensors that share bytes of their file."""
    ordered = sorted((each.begin, each.end, name) for name, each in found.items() if each.num_bytes)
    for (_, end, first), (begin, _, second) in itertools.pairwise(ordered):
        if begin < end:
            raise ModelError(
                f"{found[second].file}: tensor {second} begins at byte {begin}, inside tensor {first}, which ends at "
                f"{end}; download or save the model again"
            )


def tensor_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape, from the header of one safetensors file. Raises ModelError as `read_header` does."""
    return {name: tensor.shape for name, tensor in read_header(Path(path)).items()}


def _entries(path: Path, data: bytes) -> dict[str, _Entry]:
    try:
        header = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        return {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelError(f"{path} {BROKEN}") from None


def _check_size(name: str, tensor: StoredTensor) -> None:
    bits = BITS.get(tensor.dtype)
    if any(length < 0 for length in tensor.shape) or not 0 <= tensor.begin <= tensor.end:
        raise ModelError(f"{tensor.file} {BROKEN} (tensor {name})")
    if bits is not None and -(-math.prod(tensor.shape) * bits // 8) != tensor.num_bytes:
        raise ModelError(
            f"{tensor.file}: tensor {name} is {tensor.dtype} {list(tensor.shape)}, which does not fit its "
            f"{tensor.num_bytes} bytes; download or save the model again"
        )
