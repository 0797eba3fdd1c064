"""Several tokens of rows that decode in one call. Worker process."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

from tenonry_kernels_cpu.blocked import BlockedStruct, blocked_struct
from tenonry_kernels_cpu.layer import place_of
from tenonry_kernels_cpu.library import ADDRESS, COUNT, REAL, function
from tenonry_kernels_cpu.scratch import Scratch
from tenonry_torch_base.round_kernel import RoundTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_kernels_cpu.layer import Layer
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.round_kernel import RoundEnds
    from tenonry_torch_base.step_kernels import RoundParts


class _Model(ctypes.Structure):
    """`round_model` in native/rounds.h."""

    _fields_ = (
        *((name, ADDRESS) for name in ("parts", "window")),
        *((name, COUNT) for name in ("layers", "threads")),
        *((name, ADDRESS) for name in ("embedding", "cos", "sin")),
        ("rotated", COUNT),
        ("norm", ADDRESS),
        ("norm_eps", REAL),
        ("head", BlockedStruct),
    )


class _Ends(ctypes.Structure):
    """`round_ends` in native/rounds.h."""

    _fields_ = (
        *((name, COUNT) for name in ("most", "stops")),
        *((name, ADDRESS) for name in ("stop", "free", "tokens", "made", "failed")),
    )


class Rounds:
    """See `RoundParts`."""

    __slots__ = ("_blocks", "_function", "_held", "_model", "_room_for", "_scratch")

    def __init__(
        self, parts: RoundParts, layers: Sequence[Layer], instruction_set: str, threads: int
    ) -> None:
        count = len(layers)
        addresses = (ADDRESS * count)(*(layer.address for layer in layers))
        windows = (COUNT * count)(*(layer.window for layer in layers))
        self._held = (parts, addresses, windows)
        self._blocks = (ADDRESS * count)()
        self._model = _Model(
            ctypes.addressof(addresses),
            ctypes.addressof(windows),
            count,
            threads,
            parts.embedding.data_ptr(),
            parts.cos.data_ptr(),
            parts.sin.data_ptr(),
            parts.cos.shape[-1],
            parts.norm_weight.data_ptr(),
            parts.norm_eps,
            blocked_struct(parts.head),
        )
        self._function = function("rounds", instruction_set)
        self._room_for = function("rounds_room", instruction_set)
        self._scratch = Scratch()

    def __call__(
        self,
        token_ids: torch.Tensor,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
        ends: RoundEnds,
    ) -> RoundTokens:
        rows = len(token_ids)
        made = RoundTokens(
            torch.empty(rows, ends.most, dtype=torch.int32),
            torch.empty(rows, dtype=torch.int64),
            torch.empty(rows, dtype=torch.uint8),
        )
        self._blocks[:] = [each.data_ptr() for each in blocks]
        place = place_of(keys, 0)
        given = _Ends(
            ends.most,
            ends.stop_ids.shape[1],
            ends.stop_ids.data_ptr(),
            ends.free.data_ptr(),
            *(each.data_ptr() for each in made),
        )
        room = self._room_for(ctypes.addressof(self._model), rows, keys.table.shape[1])
        self._function(
            ctypes.addressof(self._model),
            rows,
            token_ids.data_ptr(),
            ctypes.addressof(place),
            ctypes.addressof(self._blocks),
            ctypes.addressof(given),
            self._scratch.address(room),
        )
        return made
