"""Reads the header of a GGUF file: metadata, and the table of tensors. Any process.

The library `gguf` has a reader, too. It trusts every count of the file, and makes an array of each element, which takes
seconds for a vocabulary; here each length is compared with the rest of the file before it is used.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import itertools
import math
import os
import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from tenonry.errors import ModelError
from tenonry_hf_hub.gguf.types import TYPES, BlockType

WEIGHTS = "model.gguf"  # in the folder that is made of a file
MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 64 << 20  # the largest vocabularies take 12 MiB
CHUNK_BYTES = 1 << 18  # read together
MAX_DIMENSIONS = 4
ALIGNMENT = 32
# Value type → how `struct` names it.
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING = 8
ARRAY = 9
LENGTH = struct.Struct("<Q")
TYPE = struct.Struct("<I")


class Count(NamedTuple):
    """Placeholder for an array: its number of elements."""

    elements: int


class TensorEntry(NamedTuple):
    """A tensor as the header has it, `shape` in the order of torch; its bytes are `begin` to `end` of the file."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """`size`: in bytes, up to the first tensor."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]
    size: int


def is_gguf(path: Path) -> bool:
    """Return True for a GGUF file, by its name or its first bytes."""
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> Header:
    """Raises ModelError naming file and place: no GGUF file, a part of one, or lengths that cannot be."""
    try:
        with path.open("rb") as file:
            there = file.seek(0, os.SEEK_END)
            file.seek(0)
            return _header(_Reader(path, file, there))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


def _header(reader: _Reader) -> Header:
    num_tensors, num_values = reader.start()
    metadata: dict[str, Any] = {}
    for _ in range(num_values):
        key = reader.string("the name of a metadata entry")
        if key in metadata:
            reader.fail(f"metadata entry {key} is there twice")
        metadata[key] = reader.value(key)
    rows = [reader.tensor() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        reader.fail(f"general.alignment is {alignment!r}, no power of two")
    start = -(-reader.at // alignment) * alignment
    return Header(metadata, _placed(reader.path, rows, start, reader.there), start)


class _Reader:
    """A place in the bytes of a header, which are read as far as they are needed. `there`: the size of the file."""

    def __init__(self, path: Path, file: BinaryIO, there: int) -> None:
        self.path = path
        self.file = file
        self.there = there
        self.data = file.read(CHUNK_BYTES)
        self.at = 0

    def fail(self, reason: str) -> NoReturn:
        raise ModelError(f"{self.path} is no usable GGUF file: {reason}; download it again")

    def start(self) -> tuple[int, int]:
        """The numbers of tensors and metadata entries."""
        if self.data[: len(MAGIC)] != MAGIC:
            self.fail("it does not begin with GGUF")
        self.at = len(MAGIC)
        version = self.number(TYPE, "the version")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                self.fail("its numbers are big-endian")
            self.fail(f"it is of version {version}, and versions 2 and 3 are read")
        num_tensors = self.number(LENGTH, "the number of tensors")
        num_values = self.number(LENGTH, "the number of metadata entries")
        self.expect(num_tensors, 24, "tensors")
        self.expect(num_values, 13, "metadata entries")
        return num_tensors, num_values

    def number(self, layout: struct.Struct, what: str) -> Any:
        self.expect(1, layout.size, what)
        (found,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return found

    def expect(self, count: int, size: int, what: str) -> None:
        """Raise ModelError unless `count` elements of at least `size` bytes fit."""
        lacking = self.at + count * size - len(self.data)
        if lacking <= 0:
            return
        if len(self.data) + lacking <= min(self.there, MAX_HEADER_BYTES):
            self.data += self.file.read(max(lacking, CHUNK_BYTES))
            if len(self.data) >= self.at + count * size:
                return
            self.there = len(self.data)  # truncated concurrently
        if self.there > MAX_HEADER_BYTES:
            self.fail(f"its header is longer than {MAX_HEADER_BYTES} bytes, or damaged at {what}")
        self.fail(f"it ends, after {self.there} bytes, in the middle of {what}")

    def string(self, what: str) -> str:
        length = self.number(LENGTH, what)
        self.expect(length, 1, what)
        found = self.data[self.at : self.at + length]
        self.at += length
        return found.decode("utf-8", "replace")

    def value(self, key: str) -> Any:
        what = f"metadata entry {key}"
        kind = self.number(TYPE, what)
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what)
        if kind not in SCALARS:
            self.fail(f"{what} has type {kind}, which is none")
        return self.number(struct.Struct(f"<{SCALARS[kind]}"), what)

    def array(self, what: str) -> Count:
        """Goes past it."""
        kind = self.number(TYPE, what)
        count = self.number(LENGTH, what)
        if kind in SCALARS:
            size = struct.calcsize(f"<{SCALARS[kind]}")
            self.expect(count, size, what)
            self.at += count * size
        elif kind == STRING:
            self.expect(count, LENGTH.size, what)
            self.skip_strings(count, what)
        else:
            self.fail(f"{what} is an array of type {kind}, which is not read")
        return Count(count)

    def skip_strings(self, count: int, what: str) -> None:
        """Skip `count` calls of `string`, for vocabularies: in local variables, since there are 100 000."""
        data, at, unpack = self.data, self.at, LENGTH.unpack_from
        there = len(data)
        for _ in range(count):
            end = at + LENGTH.size
            if end <= there:
                end += unpack(data, at)[0]
            if end > there:
                self.at = at
                self.string(what)
                data, end = self.data, self.at
                there = len(data)
            at = end
        self.at = at

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """A row of the table: name, shape, type and offset."""
        name = self.string("the table of tensors")
        what = f"tensor {name}"
        dimensions = self.number(TYPE, what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            self.fail(f"{what} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.number(LENGTH, what) for _ in range(dimensions))
        kind = self.number(TYPE, what)
        offset = self.number(LENGTH, what)
        return name, shape[::-1], kind, offset


def _placed(
    path: Path, rows: list[tuple[str, tuple[int, ...], int, int]], start: int, there: int
) -> dict[str, TensorEntry]:
    """Locate each tensor. Raises ModelError naming the first that is not wholly in the file."""
    found: dict[str, TensorEntry] = {}
    for name, shape, number, offset in rows:
        if name in found:
            raise ModelError(f"{path}: tensor {name} is there twice; download the file again")
        kind, per_block, block_bytes = _type(path, name, number)
        if shape[-1] % per_block:
            raise ModelError(
                f"{path}: tensor {name} has rows of {shape[-1]} elements, and {kind} has blocks of {per_block}; "
                "download the file again"
            )
        begin = start + offset
        end = begin + math.prod(shape) // per_block * block_bytes
        if end > there:
            raise ModelError(
                f"{path} is truncated: tensor {name} ends at byte {end}, the file has {there}; download it again"
            )
        found[name] = TensorEntry(kind, shape, begin, end)
    _refuse_overlap(path, found)
    return found


def _refuse_overlap(path: Path, tensors: dict[str, TensorEntry]) -> None:
    """Raise ModelError naming two tensors that share bytes."""
    ordered = sorted(tensors.items(), key=lambda item: item[1][2:])
    for (first, left), (second, right) in itertools.pairwise(ordered):
        if right.begin < left.end:
            raise ModelError(
                f"{path}: tensor {second} begins at byte {right.begin}, inside of tensor {first}, which ends at byte "
                f"{left.end}; download the file again"
            )


def _type(path: Path, name: str, number: int) -> BlockType:
    """Raises ModelError."""
    found = TYPES.get(number)
    if found is None:
        raise ModelError(
            f"{path}: tensor {name} is of type {number}, which is not known; take a file of another kind, such as Q8_0"
        )
    return found
