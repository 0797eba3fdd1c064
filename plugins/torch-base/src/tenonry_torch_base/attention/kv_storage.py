"""Storage of K and V in blocks: floats of the model's type, or 8 bits with a scale. Worker process, any device.

A *vector* is K or V of one token in one KV head. Attention sees it as stored, also in the step that made it: a token's
K and V do not depend on the chunks of its prompt, on the prefix cache, or on other rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from tenonry_torch_base.conflicts import Conflicts

AUTO = "auto"  # the setting `kv_cache_dtype` that keeps floats
CONFLICTS = Conflicts("kv_cache_dtype")
SCALE = torch.bfloat16  # its range is that of float32
TINY = torch.finfo(SCALE).tiny


class KVStorage(ABC):
    """Reads and writes vectors for a backend.

    Tensors of a layer are `kept` [blocks, vectors of a token, block_size, width]. `tolerance`: the largest relative
    error (L2) of logits that is accepted as rounding of vectors; 0 if they are not rounded.
    """

    name: ClassVar[str]
    tolerance: ClassVar[float]

    def __init__(self, dtype: torch.dtype) -> None:
        """Set up the storage. `dtype`: data type of attention."""
        self.dtype = dtype

    @property
    def is_exact(self) -> bool:
        """True if vectors are stored unrounded."""
        return self.tolerance == 0

    @property
    @abstractmethod
    def kept_dtype(self) -> torch.dtype:
        """Data type of the stored tensors."""

    @abstractmethod
    def width(self, size: int) -> int:
        """Elements of a kept vector of `size` numbers."""

    @abstractmethod
    def write(self, kept: torch.Tensor, lines: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write vectors `new` [T, C, size] to `lines` i64[T · C] of `kept`, viewed as lines of one vector; returns the
        values as read back, [T, C, size].
        """

    @abstractmethod
    def read(
        self,
        kept: torch.Tensor,
        lines: torch.Tensor,
        run: int,
        size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors in `lines` i64[n] of `kept`, seen as lines of `run` tokens of one head: [n, run · size]."""

    def vector_bytes(self, size: int) -> int:
        """Bytes of a vector of `size` numbers."""
        return self.width(size) * self.kept_dtype.itemsize


class Floats(KVStorage):
    """Floats in their original form."""

    name = AUTO
    tolerance = 0.0

    @property
    def kept_dtype(self) -> torch.dtype:
        return self.dtype

    def width(self, size: int) -> int:
        return size

    def write(self, kept: torch.Tensor, lines: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        size = new.shape[-1]
        kept.view(-1, size).index_copy_(0, lines, new.reshape(-1, size))
        return new

    def read(
        self,
        kept: torch.Tensor,
        lines: torch.Tensor,
        run: int,
        size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return torch.index_select(kept.view(-1, run * size), 0, lines, out=out)


class EightBits(KVStorage):
    """A byte per number, followed by the scale of the vector in two bytes: attention reads numbers times scale.

    The scale is max |x| / `largest` in bfloat16, and each x / scale is rounded to the nearest number, ties to even. The
    scale is rounded by 1/256 at most, so x / scale is at most 257/256 · `largest`, which `largest` is the nearest
    number of: none leaves the range. A non-finite number makes the scale non-finite, and with it the whole vector.
    """

    largest: ClassVar[float]
    kind: ClassVar[torch.dtype]

    @property
    def kept_dtype(self) -> torch.dtype:
        return torch.uint8

    def width(self, size: int) -> int:
        """Width with the scale aligned to an even byte."""
        return size + size % SCALE.itemsize + SCALE.itemsize

    def write(self, kept: torch.Tensor, lines: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        size = new.shape[-1]
        width = self.width(size)
        made = self.packed(new)
        kept.view(-1, width).index_copy_(0, lines, made.view(-1, width))
        seen = torch.empty(new.shape, dtype=self.dtype, device=new.device)
        return self.unpacked(made, seen)

    def read(
        self,
        kept: torch.Tensor,
        lines: torch.Tensor,
        run: int,
        size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        width = self.width(size)
        found = kept.view(-1, run * width).index_select(0, lines)
        if out is None:
            shape = (len(lines), run * size)
            out = torch.empty(shape, dtype=self.dtype, device=kept.device)
        self.unpacked(found.view(-1, run, width), out.view(-1, run, size))
        return out

    def packed(self, vectors: torch.Tensor) -> torch.Tensor:
        """Encode [..., size] as stored, u8[..., width]."""
        *shape, size = vectors.shape
        exact = vectors.float()
        largest = exact.abs().amax(-1, keepdim=True)
        scale = largest.div_(self.largest).to(SCALE)
        scale.clamp_min_(TINY)
        made = vectors.new_zeros(*shape, self.width(size), dtype=torch.uint8)
        numbers, scales = self._parts(made, size)
        self._round(exact / scale, numbers)
        scales.copy_(scale)
        return made

    def unpacked(self, kept: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """u8[..., width] as vectors, into `out` [..., size]."""
        numbers, scales = self._parts(kept, out.shape[-1])
        return torch.mul(numbers.to(self.dtype), scales, out=out)

    def _parts(self, kept: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the numbers [..., size] and scales [..., 1]."""
        numbers = kept[..., :size]
        scales = kept[..., -SCALE.itemsize :]
        return numbers.view(self.kind), scales.view(SCALE)

    @abstractmethod
    def _round(self, numbers: torch.Tensor, place: torch.Tensor) -> None:
        """Round to the nearest numbers of a byte."""


class Int8(EightBits):
    """Integers: an error of half a scale at most, 1/254 of the largest number of the vector."""

    name = "int8"
    tolerance = 0.15
    largest = 127.0
    kind = torch.int8

    def _round(self, numbers: torch.Tensor, place: torch.Tensor) -> None:
        place.copy_(numbers.round_())


class Fp8(EightBits):
    """Floats of 8 bits, E4M3 (arXiv:2209.05433): an error of 1/16 of each number at most, or of 1/1024 of the scale."""

    name = "fp8"
    tolerance = 0.4  # routers of experts tip: 0.29 was seen
    largest = 448.0
    kind = torch.float8_e4m3fn

    def _round(self, numbers: torch.Tensor, place: torch.Tensor) -> None:
        place.copy_(numbers)


STORAGES: dict[str, type[KVStorage]] = {kind.name: kind for kind in (Floats, Int8, Fp8)}
