"""Sparse selection: modules that choose, per query, the keys visible to attention (DeepSeek V3.2, GLM-MoE-DSA and kin).

An indexer has separate keys, one per token, which models keep in transformers' cache together with K/V. Here they have
a cache in blocks like any layer, and the indexer's own code runs over the rows of a step: decoding rows as one batch,
and each segment of a prompt separately. It selects positions within a row. Worker process.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from tenonry.errors import ModelError
from tenonry_torch_base.attention.base import LayerSpec
from tenonry_torch_base.attention.layer import INTERFACE_NAME, LAYER_ATTRIBUTE, Probe
from tenonry_torch_base.attention.masks import WANTS_MASK
from tenonry_torch_base.attention.math import causal_mask
from tenonry_torch_base.cache_argument import cache_argument, cache_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.attention.sdpa_plan import SdpaPlan
    from tenonry_torch_base.attention.segments import Segment

NOTHING = -1  # padding of rows with fewer chosen keys
MAX_SCORES = 1 << 26  # of one piece of a prompt, over all heads of an indexer
ARGUMENTS = {"hidden_states", "q_resid", "position_embeddings", "attention_mask", "position_ids"}
NEEDED = {"hidden_states", "position_embeddings", "attention_mask", "position_ids"}


class _KeysMade(Exception):
    pass


class _KeyTaker:
    """A cache that receives the step's keys [1, T, size] and stops the indexer there."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None

    def update_indexer(self, keys: torch.Tensor, *_: Any) -> torch.Tensor:
        self.keys = keys
        raise _KeysMade


class _KeyGiver:
    """A cache that returns the keys [B, L, size] of whole rows, which contain those of the step already."""

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys

    def update_indexer(self, *_: Any) -> torch.Tensor:
        return self.keys


class _KeyProbe:
    """A cache that records an indexer's keys and returns them."""

    def __init__(self) -> None:
        self.size = 0

    def update_indexer(self, keys: torch.Tensor, *_: Any) -> torch.Tensor:
        self.size = keys.shape[-1]
        return keys


class RowIndexer:
    """Replaces the forward pass of an indexer module."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self.module = module
        self.config = config
        self.own: Callable[..., torch.Tensor] = module.forward
        self._signature = inspect.signature(self.own)
        self._cache = cache_argument(self.own)

    def __call__(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Positions that each token's query may see: i64[1, T, chosen]."""
        if self.config._attn_implementation != INTERFACE_NAME:  # noqa: SLF001 - transformers' own check
            return self.own(*arguments, **named)
        given = dict(self._signature.bind(*arguments, **named).arguments)
        layer = getattr(self.module, LAYER_ATTRIBUTE)
        if isinstance(layer, Probe):
            return self._probe(layer, given)
        self._write(layer, given)
        return self._choose(layer, given)

    def _probe(self, probe: Probe, given: dict[str, Any]) -> torch.Tensor:
        seen = _KeyProbe()
        chosen = self.own(**given | {self._cache: seen})
        spec = LayerSpec(
            name=type(self.module).__name__,
            index=int(getattr(self.module, "layer_idx", -1)),
            num_heads=1,
            num_kv_heads=1,
            key_size=seen.size,
            value_size=0,
            scaling=1.0,
        )
        probe.add(self.module, spec)
        return chosen

    def _write(self, layer: AttentionLayer, given: dict[str, Any]) -> None:
        """The keys of all tokens of the step into their slots: rows may read each other's blocks."""
        taker = _KeyTaker()
        with suppress(_KeysMade):
            self.own(**given | {self._cache: taker})
        if taker.keys is None:
            raise ModelError(f"{type(self.module).__name__} does not keep its keys in its cache")
        backend: Any = layer.step.backend
        keys = taker.keys[0, :, None].to(backend.dtype)  # some indexers compute in float32
        backend.write_keys(layer, keys, layer.step.plan)

    def _choose(self, layer: AttentionLayer, given: dict[str, Any]) -> torch.Tensor:
        plan: SdpaPlan = layer.step.plan
        parts = [*self._of_decoding_rows(layer, plan, given), *self._of_prompts(layer, plan, given)]
        width = max(chosen.shape[-1] for _, chosen in parts)
        count = given["hidden_states"].shape[1]
        result = torch.full((count, width), NOTHING, device=parts[0][1].device)
        for tokens, chosen in parts:
            padded = functional.pad(chosen.long(), (0, width - chosen.shape[-1]), value=NOTHING)
            result[tokens] = padded.reshape(-1, width)
        return result[None]

    def _of_decoding_rows(
        self, layer: AttentionLayer, plan: SdpaPlan, given: dict[str, Any]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Decoding tokens, and the positions chosen for them [R, 1, chosen], group by group."""
        backend: Any = layer.step.backend
        device = given["hidden_states"].device
        order = plan.decode_tokens
        if order is None:
            order = torch.arange(plan.num_queries, device=device)
        if not len(order):
            return
        for group in plan.decode_groups(layer.spec, backend.dtype):
            tokens = order[group.begin : group.end]
            keys = backend.gather_keys(layer, group.index, len(tokens))
            yield tokens, self._run(given, tokens[:, None], keys, group.mask[:, 0])

    def _of_prompts(
        self, layer: AttentionLayer, plan: SdpaPlan, given: dict[str, Any]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The same for prompts [sequences, length, chosen], in pieces whose scores stay within bounds."""
        device = given["hidden_states"].device
        for segment in plan.prefill:
            end = segment.token + segment.count * segment.length
            tokens = torch.arange(segment.token, end, device=device).view(segment.count, -1)
            keys = self._keys_of(layer, plan, segment)
            num_keys = keys.shape[1]
            heads = int(getattr(self.module, "n_heads", 64))
            piece = max(1, MAX_SCORES // (num_keys * heads * segment.count))
            for begin in range(0, segment.length, piece):
                part = tokens[:, begin : begin + piece]
                mask = causal_mask(
                    part.shape[1], segment.start + begin, num_keys, 0, torch.float32, device
                )
                yield part.reshape(-1), self._run(given, part, keys, mask[None])

    def _keys_of(self, layer: AttentionLayer, plan: SdpaPlan, segment: Segment) -> torch.Tensor:
        """The keys [sequences, L, size] that a segment of prompts sees."""
        backend: Any = layer.step.backend
        end = segment.start + segment.length
        end_block = -(-end // plan.block_size)
        index = plan.first_context_index(segment, layer.spec, end_block)
        keys: torch.Tensor = backend.gather_keys(layer, index, segment.count)
        return keys[:, :end]

    def _run(
        self, given: dict[str, Any], tokens: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """The indexer's own code over `tokens` i64[B, S] of the step, with `keys` [B, L, size] and an additive `mask`
        [B, S, L].
        """
        of_rows = {"attention_mask": mask, self._cache: _KeyGiver(keys)}
        taken = {
            name: _taken(value, tokens) for name, value in given.items() if name not in of_rows
        }
        return self.own(**taken, **of_rows)


def _taken(value: Any, tokens: torch.Tensor) -> Any:
    """Select `tokens` [B, S] from per-token values [1, T, …]: [B, S, …]."""
    if isinstance(value, tuple):
        return tuple(_taken(part, tokens) for part in value)
    return value[0, tokens] if isinstance(value, torch.Tensor) else value


def bind_indexers(model: PreTrainedModel) -> bool:
    """Make every indexer of a model run over rows; returns True if it has any. Idempotent."""
    config = model.config.get_text_config()
    found = False
    for module in model.modules():
        if not type(module).__name__.endswith("Indexer"):
            continue
        known = set(inspect.signature(type(module).forward).parameters) - {"self"}
        caches = set(cache_arguments(type(module).forward))
        if len(caches) != 1 or not NEEDED <= known - caches <= ARGUMENTS:
            raise ModelError(
                f"{type(module).__name__} chooses what attention sees in a way that worker 'torch' does not know"
            )
        found = True
        if not isinstance(module.forward, RowIndexer):
            module.forward = RowIndexer(module, config)  # type: ignore[method-assign]
    if found:
        setattr(config, WANTS_MASK, True)
    return found
