"""The attention backend `triton`: one kernel writes K/V, one or two attend over the blocks where they lie. Worker
process, CUDA.

Nothing is gathered, padded or masked beforehand, and the grid of a decode depends on the number of rows alone. Layers
that the kernels do not know (keys that a model chooses, queries that see later keys) are computed by the operations of
the reference backend, over the same blocks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from typing import TYPE_CHECKING, ClassVar

import torch

from tenonry_attention_triton.plan import RepeatedPlan, TritonPlan
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.attention.sdpa_plan import SdpaPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_attention_triton.launch import Shape
    from tenonry_torch_base.attention.base import (
        AttentionBatch,
        CachedLayer,
        DecodeRows,
        LayerCache,
        LayerSpec,
    )
    from tenonry_torch_base.attention.kv_storage import KVStorage

OLDEST_CARD = (8, 0)
OLDEST_TRITON = (3, 5)  # of torch 2.9
PROGRAMS_PER_PROCESSOR = 4  # programs of a decode that run on a multiprocessor together
FEW_PROGRAMS = 16  # where there is none


def is_interpreted() -> bool:
    """Return True if Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def has_triton() -> bool:
    """Return True if Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def triton_version() -> tuple[int, int] | None:
    """Version of the installed Triton; None where it comes under another name, as in nightly builds of torch."""
    try:
        major, minor, *_ = importlib.metadata.version("triton").split(".")
    except importlib.metadata.PackageNotFoundError:
        return None
    return int(major), int(minor)


def text_of(version: tuple[int, int]) -> str:
    """A version as it is written."""
    return ".".join(map(str, version))


class TritonBackend(SdpaBackend):
    """See the module."""

    name: ClassVar[str] = "triton"
    features: ClassVar[frozenset[str]] = SdpaBackend.features

    @classmethod
    def refusal(
        cls, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> str | None:
        if not has_triton():
            return (
                "there is no Triton, which torch for CUDA brings; use sdpa, or pip install triton"
            )
        found = triton_version()
        if found is not None and found < OLDEST_TRITON:
            return (
                f"it needs Triton {text_of(OLDEST_TRITON)}, and {text_of(found)} is installed; use sdpa, or "
                "pip install --upgrade torch"
            )
        if is_interpreted():
            return None
        if device.type != "cuda":
            return f"its kernels run on CUDA, and the device is '{device.type}'; use sdpa"
        if (
            not torch.cuda.is_initialized()
        ):  # a process that only describes the model leaves the card alone
            return None
        card = torch.cuda.get_device_capability(device)
        if card < OLDEST_CARD:
            return f"its kernels need a GPU of compute capability 8.0, and this one has {card[0]}.{card[1]}; use sdpa"
        return None

    def __init__(
        self, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, dtype, device)
        self._shapes: dict[str, Shape] = {}
        self._needs_whole_blocks = any(not has_kernels(layer) for layer in layers)
        self.programs = FEW_PROGRAMS
        self._card = OLDEST_CARD[0]  # major compute capability
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            self._card = properties.major
            self.programs = properties.multi_processor_count * PROGRAMS_PER_PROCESSOR

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        caches = super().allocate(num_blocks, block_size)
        from tenonry_attention_triton.warm import attend_unsplit

        if all(has_kernels(spec) for spec in self.layers):
            for spec in self.layers:
                attend_unsplit(self, spec, caches[spec.name])
        return caches

    def keep_in(self, storage: KVStorage) -> None:
        super().keep_in(storage)
        self._shapes.clear()

    def plan(self, batch: AttentionBatch) -> TritonPlan:  # type: ignore[override] - its own
        if self._needs_whole_blocks:
            self.clear_entered(batch)
        return TritonPlan(batch, self.block_size, self.programs)

    def decode_plan(self, rows: DecodeRows) -> RepeatedPlan | None:
        if not all(has_kernels(layer) for layer in self.layers):
            return None
        return RepeatedPlan(rows, self.block_size, self.programs)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: TritonPlan,  # type: ignore[override] - its own
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        spec = layer.spec
        if not has_kernels(spec):
            return self._by_reference(layer, query, key, value, plan, both)
        from tenonry_attention_triton import launch

        launch.write(self.shape_of(spec), layer.kv_cache[0], by_token(key), by_token(value), plan)
        return self.attend(layer, query, plan)

    def attend(self, layer: CachedLayer, query: torch.Tensor, plan: TritonPlan) -> torch.Tensor:
        """As `forward`, of a step whose K/V are written already."""
        from tenonry_attention_triton import launch

        spec = layer.spec
        query = query.contiguous()
        out = query.new_empty(plan.num_queries, spec.num_heads, spec.value_size)
        for attend in launch.launches(plan):
            sinks = layer.sinks if spec.sinks else None
            attend(self.shape_of(spec), layer.kv_cache[0], query, sinks, plan, out)
        return out

    def shape_of(self, spec: LayerSpec) -> Shape:
        """Sizes of a layer for the kernels."""
        from tenonry_attention_triton import launch

        shape = self._shapes.get(spec.name)
        if shape is None:
            shape = self._shapes[spec.name] = launch.Shape(
                spec, self.dtype.itemsize, self._card, self.storage
            )
        return shape

    def _by_reference(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: TritonPlan,
        both: torch.Tensor | None,
    ) -> torch.Tensor:
        if plan.reference is None:
            plan.reference = SdpaPlan(plan.batch, self.block_size)
        return super().forward(layer, query, key, value, plan.reference, both)


def has_kernels(spec: LayerSpec) -> bool:
    """Return True if the kernels compute such a layer."""
    return not (spec.indexed or spec.spans or not spec.value_size)


def by_token(tensor: torch.Tensor) -> torch.Tensor:
    """[T, heads, size] with each token's heads one after another; tokens may be apart."""
    size = tensor.shape[-1]
    is_whole = tensor.stride(2) == 1 and tensor.stride(1) == size
    return tensor if is_whole else tensor.contiguous()
