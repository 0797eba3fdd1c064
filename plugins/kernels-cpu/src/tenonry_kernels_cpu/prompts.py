"""Layers of steps whose rows have several new tokens. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from tenonry_kernels_cpu.layer import place_of
from tenonry_kernels_cpu.library import ADDRESS, COUNT, function
from tenonry_kernels_cpu.scratch import Scratch
from tenonry_kernels_cpu.weights import address

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_kernels_cpu.layer import Layer
    from tenonry_torch_base.paged_attention import Chunks, PagedKeys


class Prompts:
    """See `PromptParts`."""

    __slots__ = (
        "_blocks",
        "_function",
        "_held",
        "_parts",
        "_room_for",
        "_scratch",
        "_threads",
        "_windows",
    )

    def __init__(self, layers: Sequence[Layer], instruction_set: str, threads: int) -> None:
        count = len(layers)
        self._held = list(layers)
        self._parts = (ADDRESS * count)(*(layer.address for layer in layers))
        self._windows = (COUNT * count)(*(layer.window for layer in layers))
        self._blocks = (ADDRESS * count)()
        self._threads = threads
        self._function = function("prompts", instruction_set)
        self._room_for = function("prompts_room", instruction_set)
        self._scratch = Scratch()

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        chunks: Chunks,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
        last: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows = len(chunks.counts)
        tokens = len(hidden)
        for number, each in enumerate(blocks):
            self._blocks[number] = each.data_ptr()
        out = hidden.clone()
        place = place_of(keys, 0)
        room = self._room_for(ctypes.addressof(self._parts), len(self._held), rows, tokens)
        self._function(
            ctypes.addressof(self._parts),
            len(blocks),
            self._threads,
            tokens,
            rows,
            chunks.begins.data_ptr(),
            chunks.counts.data_ptr(),
            out.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[-1],
            ctypes.addressof(place),
            ctypes.addressof(self._blocks),
            ctypes.addressof(self._windows),
            address(last),
            -1 if last is None else len(last),
            self._scratch.address(room),
        )
        return out if last is None else out[: len(last)]
