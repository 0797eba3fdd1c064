"""A rank's part of a parameter, cut from a tensor or from a file. Pure; worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARDS = "tenonry_shards"  # of a rank's model: parameter name → its Shard


@dataclass(frozen=True, slots=True)
class Shard:
    """Piece `index` of `count` along dimension `dim` (negative: counted from the end).

    `parts`: number of concatenated matrices along it, each of which is cut (gate and up: 2). `is_padded`: the size need
    not divide; the last piece is padded with zeros, so that all have one size.
    """

    dim: int
    index: int
    count: int
    parts: int = 1
    is_padded: bool = False

    def shape(self, full: Sequence[int], name: str) -> list[int]:
        """The shape of the piece. Raises ModelError with the numbers when the size does not divide."""
        size = full[self.dim]
        if not self.is_padded and size % (self.parts * self.count):
            raise ModelError(
                f"{name} of shape {list(full)} cannot be cut into {self.count} equal pieces along {size} "
                f"(of {self.parts} parts); choose a tensor_parallel_size that divides it"
            )
        piece = list(full)
        each = -(-size // (self.parts * self.count))
        piece[self.dim] = self.parts * each
        return piece

    def cut(self, source: Any, parts: int | None = None) -> torch.Tensor:
        """The piece of `source`, a tensor or a slice of a safetensors file; only the piece is read.

        `parts` replaces the shard's own when the source holds only one of the concatenated matrices.
        """
        shape = list(source.shape if isinstance(source, torch.Tensor) else source.get_shape())
        parts = self.parts if parts is None else parts
        dim = self.dim % len(shape)
        whole = shape[self.dim] // parts
        piece = -(-whole // self.count)
        begin = min(self.index * piece, whole)
        end = min((self.index + 1) * piece, whole)
        before = (slice(None),) * dim
        found = [
            source[(*before, slice(part * whole + begin, part * whole + end))]
            for part in range(parts)
        ]
        tensor = found[0] if parts == 1 else torch.cat(found, dim)
        if end - begin < piece:
            shape[dim] = piece - (end - begin)
            tensor = torch.cat([tensor, tensor.new_zeros(shape)], dim)
        return tensor


class FileSlice:
    """One tensor of a safetensors file, read when it is indexed with `...`, then only `shard`'s piece."""

    __slots__ = ("parts", "shard", "source")

    def __init__(self, source: Any, shard: Shard | None, parts: int | None = None) -> None:
        self.source = source
        self.shard = shard
        self.parts = parts

    def __getitem__(self, _everything: Any) -> torch.Tensor:
        if self.shard is None:
            return self.source[...]
        return self.shard.cut(self.source, self.parts)
