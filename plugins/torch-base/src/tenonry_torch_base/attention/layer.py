"""The attention layers of a model and the way into them: transformers' attention interface, or a fused layer. Worker
process.

transformers calls one registered function for every attention module. It finds the module's `AttentionLayer` on the
module itself, so several engines in one process do not share any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tenonry.errors import ModelError
from tenonry_torch_base.attention.base import AttentionBackend, LayerCache, LayerSpec
from tenonry_torch_base.attention.masks import Reach, make_mask, reach_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tenonry_torch_base.attention.rank_heads import RankHeads

INTERFACE_NAME = "tenonry"
LAYER_ATTRIBUTE = "tenonry_attention"
# Tensors that models pass to every attention function and that a causal paged one does not need.
HARMLESS_TENSORS = frozenset(
    {"position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "logits_to_keep"}
)


class StepPlan:
    """Shared state of all layers of one model during a step: the backend and its plan. Replaced every step.

    `forward_passes` counts those of the model's own code, for modules that attend more than once in each.
    """

    __slots__ = ("backend", "forward_passes", "plan")

    def __init__(self, backend: AttentionBackend) -> None:
        self.backend = backend
        self.forward_passes = 0
        self.plan: Any = None


class AttentionLayer:
    """One attention layer: its spec, its cache (a list of one, filled by `bind_kv_cache`) and the step's plan.

    `sinks` [num_heads], if it has any. `rank_heads`: heads of this rank, if the model's code passes those of all ranks.
    """

    __slots__ = ("chosen", "kv_cache", "rank_heads", "sinks", "spec", "step")

    def __init__(
        self,
        spec: LayerSpec,
        step: StepPlan,
        rank_heads: RankHeads | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.spec = spec
        self.sinks = sinks
        self.chosen: torch.Tensor | None = None
        self.step = step
        self.rank_heads = rank_heads
        self.kv_cache: list[LayerCache] = []

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`query` [T, num_heads, size], `key` and `value` [T, num_kv_heads, size] → [T, num_heads, size].

        `both` is key and value as one tensor [T, 2 × num_kv_heads, size], if they are that.
        """
        step = self.step
        return step.backend.forward(self, query, key, value, step.plan, both)

    def __deepcopy__(self, memo: dict[int, Any]) -> AttentionLayer:
        """Share the cache with a copied module: caches are never copied."""
        return self


class LayerCalls:
    """The layers of a module that attends several times in one forward pass: call i is layer i."""

    __slots__ = ("_forward_pass", "_next", "layers", "step")

    def __init__(self, layers: list[AttentionLayer], step: StepPlan) -> None:
        self.layers = layers
        self.step = step
        self._next = 0
        self._forward_pass = -1

    def take(self) -> AttentionLayer:
        """The layer of this call."""
        if self._forward_pass != self.step.forward_passes:
            self._forward_pass = self.step.forward_passes
            self._next = 0
        layer = self.layers[self._next]
        self._next += 1
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerCalls:
        """Share caches, as in a layer."""
        return self


class Attended(NamedTuple):
    """A call of a layer in the first run of a model, with all tokens: `query`, `key`, `value` and `out` are
    [T, heads, size].
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor

    def by_heads(self, heads: RankHeads | None) -> Attended:
        """The same with the heads of this rank alone."""
        if heads is None:
            return self
        return Attended(
            self.query[:, heads.query],
            self.key[:, heads.kv],
            self.value[:, heads.kv],
            self.out[:, heads.query],
        )


class Probe:
    """Replaces the layers during the first run of a model: records the arguments of each attention module.

    Every call of a module is a separate layer, with a separate cache: `specs` and `modules` in order of the calls.
    """

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._calls: dict[int, int] = {}
        self.specs: list[LayerSpec] = []
        self.modules: list[torch.nn.Module] = []
        self.sinks: list[torch.Tensor | None] = []
        self.attended: dict[str, Attended] = {}

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        spec: LayerSpec,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        from tenonry_torch_base.attention.math import causal_attention

        self.add(module, spec, sinks)
        out = causal_attention(query, key, value, spec, sinks)
        self.attended[spec.name] = Attended(query, key, value, out)
        return out

    def add(
        self, module: torch.nn.Module, spec: LayerSpec, sinks: torch.Tensor | None = None
    ) -> None:
        """A layer with a cache, as its module shows it."""
        call = self._calls.get(id(module), 0)
        self._calls[id(module)] = call + 1
        name = self._names.get(id(module), spec.name)
        spec.name = f"{name}#{call + 1}" if call else name
        self.specs.append(spec)
        self.modules.append(module)
        self.sinks.append(sinks)


def register_interface() -> None:
    """Make `INTERFACE_NAME` known to transformers; doing it twice is harmless."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(INTERFACE_NAME, paged_attention)
    AttentionMaskInterface.register(INTERFACE_NAME, make_mask)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    softcap: float | None = None,
    **other: Any,
) -> tuple[torch.Tensor, None]:
    """The function transformers calls: `query` [1, num_heads, T, size]; returns [1, T, num_heads, size].

    A window passed by a layer counts only as far as the mask contains it, as in `eager` and `sdpa` attention. Raises
    ModelError when the model passes something that would change the result and that is not supported.
    """
    layer: AttentionLayer | LayerCalls | Callable[..., torch.Tensor] = getattr(
        module, LAYER_ATTRIBUTE
    )
    q = query[0].transpose(0, 1)  # [T, num_heads, size]
    k = key[0].transpose(0, 1)
    v = value[0].transpose(0, 1)
    if isinstance(layer, LayerCalls):
        layer = layer.take()
    if isinstance(layer, AttentionLayer):
        if layer.spec.indexed:
            layer.chosen = other["indices"][0]
        if layer.rank_heads is None:
            out = layer(q, k, v)
        else:
            out = layer.rank_heads.attend(layer, q, k, v)
        return out[None], None
    sinks: torch.Tensor | None = other.pop("s_aux", None)
    chosen: torch.Tensor | None = other.pop("indices", None)
    reach = _known_reach(module, attention_mask, other)
    spec = LayerSpec(
        name=type(module).__name__,
        index=_index_of(module),
        num_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        key_size=k.shape[2],
        value_size=v.shape[2],
        scaling=float(scaling) if scaling is not None else q.shape[2] ** -0.5,
        window=reach.window,
        chunk=reach.chunk,
        sinks=sinks is not None,
        indexed=chosen is not None,
        softcap=float(softcap or 0.0),
    )
    return layer(module, q, k, v, spec, sinks)[None], None


def _index_of(module: torch.nn.Module) -> int:
    """Return the number of the module's layer; −1 if it has none, or serves several layers and receives it with each
    call.
    """
    index = getattr(module, "layer_idx", None)
    return -1 if index is None else int(index)


def _known_reach(
    module: torch.nn.Module, mask: torch.Tensor | None, other: dict[str, Any]
) -> Reach:
    """Keys visible to the layer's queries. Raises ModelError for anything that paged attention does not support, such
    as position biases and bidirectional layers.
    """
    import torch

    kind = type(module).__name__
    reach = reach_of(mask)
    if reach is None:
        raise ModelError(
            f"{kind} masks or biases its attention scores by a rule that worker 'torch' does not know"
        )
    for name, value in other.items():
        if isinstance(value, torch.Tensor) and name not in HARMLESS_TENSORS:
            raise ModelError(
                f"{kind} passes '{name}' to attention, which worker 'torch' does not support"
            )
    if getattr(module, "is_causal", True) is False or other.get("is_causal") is False:
        raise ModelError(f"{kind} is not causal: worker 'torch' serves causal language models only")
    return reach
