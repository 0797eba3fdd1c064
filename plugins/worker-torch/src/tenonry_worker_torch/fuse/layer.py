"""A decoder layer of the Llama kind, on [T, hidden], without the framework around it. Worker process.

Covers normalisation before each half (Llama, Qwen, Mistral, Phi-3), after it (OLMo 2), and both (Gemma 2 and 3). A
feed-forward part of another shape, such as experts, is called unchanged. A mixer may replace attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP, fused_attention, fused_mlp
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.mixers.part import FusedMixer
from tenonry_worker_torch.fuse.norm import RMSNorm, rms_norm_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.attention.base import LayerSpec
    from tenonry_worker_torch.fuse.block import Attend
    from tenonry_worker_torch.fuse.linear import Packing

KERNEL_TOKENS = (
    128  # kernels are for few rows: of longer prompts, torch computes matrix products on all cores
)
# (before attention, after attention, before feed-forward, after feed-forward) by the names of the norms.
NORM_LAYOUTS: tuple[tuple[str | None, str | None, str | None, str | None], ...] = (
    (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    ("input_layernorm", None, "post_attention_layernorm", None),
)


class FirstHalf(Protocol):
    """First half of a layer: `FusedAttention`, or a module called unchanged. `out` has the interface of `Linear`."""

    out: Any

    def heads(
        self,
        x: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None,
        /,
    ) -> torch.Tensor: ...

    def pack(self, packing: Packing) -> None: ...


class HalfKernel(Protocol):
    """The first half of a layer in one, or all of it."""

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None, /
    ) -> torch.Tensor | None:
        """Compute `hidden` [T, H] → [T, H], in a new tensor; None for an unsupported step."""
        ...


class FusedLayer:
    """`hidden` [T, H] → [T, H], or [Q, H] when only the tokens `keep` i64[Q] continue; all K/V are written anyway."""

    def __init__(
        self,
        attention: FirstHalf,
        mlp: FusedMLP | nn.Module,
        norms: list[RMSNorm | None],
        layer_type: str,
    ) -> None:
        self.attention = attention
        self.mlp = mlp
        self.layer_type = layer_type
        self.before_attention, self.after_attention, self.before_mlp, self.after_mlp = norms
        self.kernel: HalfKernel | None = None  # of the whole layer
        self.first_half_kernel: HalfKernel | None = None
        self.feed_forward_kernel: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        keep: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.kernel is not None and keep is None and len(hidden) <= KERNEL_TOKENS:
            made = self.kernel(hidden, cos, sin)
            if made is not None:
                return made
        if self.first_half_kernel is not None and keep is None and len(hidden) <= KERNEL_TOKENS:
            made = self.first_half_kernel(hidden, cos, sin)
            if made is not None:
                return self.feed_forward(made)
        x = hidden if self.before_attention is None else self.before_attention(hidden)
        heads = self.attention.heads(x, cos, sin, keep)
        if keep is not None:
            hidden = hidden.index_select(0, keep)
            if not len(keep):
                return hidden
        if self.after_attention is None:
            hidden = self.attention.out.add(heads, hidden)
        else:
            hidden = self.after_attention(self.attention.out(heads)).add_(hidden)
        return self.feed_forward(hidden)

    def feed_forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The second half of the layer: `hidden` [N, H] → [N, H]."""
        if self.feed_forward_kernel is not None and len(hidden) <= KERNEL_TOKENS:
            return self.feed_forward_kernel(hidden)
        x = hidden if self.before_mlp is None else self.before_mlp(hidden)
        if not isinstance(self.mlp, FusedMLP):
            made = self.mlp(x[None])
            if isinstance(made, tuple):
                made = made[0]
            out = made.view(x.shape)
        elif self.after_mlp is None:
            return self.mlp.down.add(self.mlp.inner(x), hidden)
        else:
            out = self.mlp.down(self.mlp.inner(x))
        if self.after_mlp is not None:
            out = self.after_mlp(out)
        return out + hidden

    def pack(self, packing: Packing) -> None:
        """Change the layout of the weights, including those inside a feed-forward part of another shape."""
        self.attention.pack(packing)
        if isinstance(self.mlp, FusedMLP):
            self.mlp.pack(packing)
        else:
            pack_linears(self.mlp, packing)


def fused_layer(
    module: nn.Module, spec: LayerSpec, attend: Attend, layer_type: str
) -> FusedLayer | None:
    """Build a layer with `self_attn`, `mlp` and norms under known names; None for another structure."""
    attention = getattr(module, "self_attn", None)
    if attention is None:
        return None
    fused = fused_attention(attention, spec, attend)
    return None if fused is None else _around(fused, module, "self_attn", layer_type)


def fused_mixer_layer(module: nn.Module, mixer: FusedMixer, layer_type: str) -> FusedLayer | None:
    """As `fused_layer`, for a module whose child `mixer.name` is a layer with state."""
    return _around(mixer, module, mixer.name, layer_type)


def _around(
    part: FusedAttention | FusedMixer, module: nn.Module, part_name: str, layer_type: str
) -> FusedLayer | None:
    mlp = getattr(module, "mlp", None)
    norms = _norms(module)
    if mlp is None or norms is None:
        return None
    known = {part_name, "mlp"}
    for layout in NORM_LAYOUTS:
        known.update(name for name in layout if name)
    for name, child in module.named_children():
        if name not in known and not isinstance(child, nn.Dropout | nn.Identity):
            return None
    return FusedLayer(part, fused_mlp(mlp) or mlp, norms, layer_type)


def _norms(module: nn.Module) -> list[RMSNorm | None] | None:
    """Return one norm, or None, for each place of the module's layout; None for an unknown layout."""
    names = {name for name, _ in module.named_children() if name.endswith("norm")}
    for layout in NORM_LAYOUTS:
        wanted = [name for name in layout if name]
        if names != set(wanted):
            continue
        found = {name: rms_norm_of(getattr(module, name)) for name in wanted}
        if None not in found.values():
            return [found[name] if name else None for name in layout]
    return None
