"""An attention backend whose decoding steps depend on tensors alone, as kernels for CUDA do, in torch's operations."""

from __future__ import annotations

from typing import ClassVar

import torch

from tenonry_torch_base.attention.base import DecodeRows
from tenonry_torch_base.attention.math import masked_attention
from tenonry_torch_base.attention.sdpa import SdpaBackend


class PlainBackend(SdpaBackend):
    name: ClassVar[str] = "plain"
    features: ClassVar[frozenset[str]] = frozenset()

    def decode_plan(self, rows):
        return rows

    def forward(self, layer, query, key, value, plan, both=None):
        if not isinstance(plan, DecodeRows):
            return super().forward(layer, query, key, value, plan, both)
        cache = layer.kv_cache[0]
        size = self.block_size
        for tensor, new in ((cache.key, key), (cache.value, value)):
            tensor[plan.slots // size, :, plan.slots % size] = new
        keys, values = (self._of_rows(each, plan.table) for each in (cache.key, cache.value))
        is_seen = torch.arange(keys.shape[2]) < plan.lengths[:, None]
        values = torch.where(is_seen[:, None, :, None], values, 0.0)
        keys = torch.where(is_seen[:, None, :, None], keys, 0.0)
        mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, float("-inf"))[:, None, None]
        out = masked_attention(query[:, :, None], keys, values, mask, layer.spec)
        return out[:, :, 0]

    @staticmethod
    def _of_rows(tensor, table):
        """[blocks, heads, block_size, size] → [rows, heads, positions, size]."""
        return tensor[table.long()].transpose(1, 2).flatten(2, 3)
