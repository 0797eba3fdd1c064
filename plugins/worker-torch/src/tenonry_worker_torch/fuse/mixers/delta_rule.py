"""The gated delta rule (arXiv:2412.06464), one token per row. Worker process.

Per row and head with the state S [key, value], decay α, rate β, unit vectors q and k: S ← α·S, then
S ← S + k ⊗ β·(v − kᵀS), and the output is qᵀS / √key. Query, key and value come from a short convolution; the output is
normalised and gated.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from tenonry_worker_torch.fuse.mixers.projection import (
    decay_rate_of,
    input_projection,
    output_projection,
    plain,
)
from tenonry_worker_torch.fuse.mixers.window import window_of
from tenonry_worker_torch.state.layer_cache import CONVOLUTION, RECURRENT, StateKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tenonry_worker_torch.fuse.mixers.projection import Projection
    from tenonry_worker_torch.fuse.mixers.window import Window

WINDOW = StateKey(CONVOLUTION, 0)
MATRIX = StateKey(RECURRENT, 0)
SMALL = 512  # entries of a matrix up to which a product and a sum are faster than a matrix product
CHUNK_RULE = "torch_chunk_gated_delta_rule"
SMALLEST_CHUNK = 8
LARGEST_CHUNK = 64
UNIT_EPS = 1e-6  # under the root in the normalisation of query and key


class DeltaRule:
    """A path (see `tenonry_worker_torch.state.mixer.DecodePath`) from the parameters of a module.

    `order` i64[columns] permutes the projected columns to the order query, key, value, gate, rate, decay; None if they
    are in it.
    """

    def __init__(
        self,
        module: Any,
        projection: Projection,
        order: torch.Tensor | None,
        window: Window,
        out: Projection,
    ) -> None:
        self.projection = projection
        self.order = order
        self.window = window
        self.out = out
        self.num_key_heads = module.num_k_heads
        self.num_heads = module.num_v_heads
        self.key_size = module.head_k_dim
        self.value_size = module.head_v_dim
        self.decay_rate = decay_rate_of(module)
        self.decay_bias = plain(module.dt_bias)
        self.norm_weight = plain(module.norm.weight)
        self.norm_eps = module.norm.variance_epsilon
        keys = self.num_key_heads * self.key_size
        values = self.num_heads * self.value_size
        self.channels = (2 * keys, values)
        self.parts = (keys, keys, values)
        self.columns = (sum(self.channels), values, self.num_heads, self.num_heads)
        self.chunk_rule = chunk_rule_of(module)
        self.scale = self._lengths().to(self.decay_rate)

    def _lengths(self) -> torch.Tensor:
        """Factors that scale vectors of length √key, as left by rms_norm, to 1/√key for queries and 1 for keys."""
        lengths = torch.tensor([[1.0 / self.key_size], [self.key_size**-0.5]])
        return lengths.repeat_interleave(self.num_key_heads, 0)

    def __call__(self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor]) -> torch.Tensor:
        """`x` [R, hidden] → [R, hidden]; changes the states of these rows."""
        mixed, gate, rate, decay = self._projected(x)
        mixed = self.window(mixed, states[WINDOW])
        query_key, value = mixed.split(self.channels, 1)
        query, key = self._heads(query_key)
        heads = (-1, self.num_heads, 1, self.value_size)
        steps = functional.softplus(decay.float() + self.decay_bias)
        steps.mul_(self.decay_rate)
        made = delta_step(
            states[MATRIX],
            query,
            key,
            value.view(heads),
            steps.exp_()[..., None, None],
            rate.float().sigmoid()[..., None, None],
        )
        return self._output(made, gate).to(x.dtype)

    def over_prompts(
        self, x: torch.Tensor, states: Mapping[StateKey, torch.Tensor] | None
    ) -> tuple[torch.Tensor, dict[StateKey, torch.Tensor]]:
        """See `PromptPath`. Interactions within one chunk are computed by the function of transformers."""
        count, length, _ = x.shape
        mixed, gate, rate, decay = self._projected(x.flatten(0, 1))
        mixed, window = self.window.over_prompts(
            mixed.view(count, length, -1), None if states is None else states[WINDOW]
        )
        query, key, value = mixed.split(self.parts, 2)
        steps = functional.softplus(decay.float() + self.decay_bias)
        steps.mul_(self.decay_rate)
        made, matrix = self.chunk_rule(
            self._per_value_head(query.unflatten(2, (-1, self.key_size))),
            self._per_value_head(key.unflatten(2, (-1, self.key_size))),
            value.unflatten(2, (-1, self.value_size)),
            g=steps.view(count, length, -1),
            beta=rate.float().sigmoid().view(count, length, -1),
            chunk_size=chunk_size_for(length),
            initial_state=None if states is None else states[MATRIX],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        made = made.reshape(-1, self.num_heads, 1, self.value_size)
        out = self._output(made, gate).to(x.dtype)
        return out.view(x.shape), {WINDOW: window, MATRIX: matrix}

    def _per_value_head(self, heads: torch.Tensor) -> torch.Tensor:
        """[B, L, key heads, key] → [B, L, heads, key]: not every version of the chunk rule repeats the heads itself."""
        repeats = self.num_heads // self.num_key_heads
        return heads if repeats == 1 else heads.repeat_interleave(repeats, 2)

    def _projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """`x` [N, hidden] → input of the convolution, gate, rate and decay."""
        projected = self.projection(x)
        if self.order is not None:
            projected = projected.index_select(1, self.order)
        return projected.split(self.columns, 1)

    def _output(self, made: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """`made` [N, heads, 1, value], changed → [N, hidden]."""
        made = torch.rms_norm(made, (self.value_size,), self.norm_weight, self.norm_eps)
        opened = functional.silu(gate.float())
        made.mul_(opened.view(made.shape))
        return self.out(made.view(gate.shape).to(gate.dtype))

    def _heads(self, query_key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Unit vectors, each [R, heads, key]; a key head serves several value heads."""
        heads = query_key.view(-1, 2 * self.num_key_heads, self.key_size)
        heads = torch.rms_norm(heads, (self.key_size,), None, UNIT_EPS / self.key_size)
        heads.mul_(self.scale)
        if self.num_heads > self.num_key_heads:
            repeats = self.num_heads // self.num_key_heads
            heads = heads.repeat_interleave(repeats, 1)
        heads = heads.view(-1, 2, self.num_heads, self.key_size)
        return heads.select(1, 0), heads.select(1, 1)


def delta_step(
    matrix: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
) -> torch.Tensor:
    """One token of every row. `matrix` [R, heads, K, V] is changed; `query`, `key` [R, heads, K]; `value`
    [R, heads, 1, V]; `decay` and `rate` to be multiplied with the matrix and with the value. Returns [R, heads, 1, V].
    """
    state = matrix if matrix.dtype == torch.float32 else matrix.float()
    state.mul_(decay)
    known = _read(state, key)
    change = (value - known).mul_(rate)
    state.addcmul_(key.unsqueeze(3), change)
    if state is not matrix:
        matrix.copy_(state)
    return _read(state, query)


def _read(state: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """`vectors` [R, heads, K] times `state` [R, heads, K, V]: [R, heads, 1, V]."""
    if state.shape[2] * state.shape[3] <= SMALL:
        return (state * vectors.unsqueeze(3)).sum(2, keepdim=True)
    return vectors.unsqueeze(2) @ state


def chunk_size_for(length: int) -> int:
    """Return the chunk size: transformers pads prompts to whole chunks, of 64 tokens unless another size is passed."""
    return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, 1 << (length - 1).bit_length()))


def chunk_rule_of(module: Any) -> Callable[..., Any]:
    """Return the function called for prompts by the module's own code. Raises AttributeError without one."""
    for kind in type(module).__mro__:
        source = sys.modules[kind.__module__]
        found: Callable[..., Any] | None = getattr(source, CHUNK_RULE, None)
        if found is not None:
            return found
    raise AttributeError(CHUNK_RULE)


def delta_rule(module: Any) -> DeltaRule | None:
    """Build the path from a module with in_proj_qkvz and in_proj_ba (Qwen3-Next), or in_proj_qkv, _z, _b and _a
    (Qwen3.5).
    """
    window = window_of(module.conv1d, module.activation)
    out = output_projection(module.out_proj)
    if window is None or out is None:
        return None
    order = None
    if hasattr(module, "in_proj_qkvz"):
        order = _by_kind(module).to(module.A_log.device)
        parts = [module.in_proj_qkvz, module.in_proj_ba]
    else:
        parts = [module.in_proj_qkv, module.in_proj_z, module.in_proj_b, module.in_proj_a]
    projection = input_projection(parts)
    if projection is None:
        return None
    return DeltaRule(module, projection, order, window, out)


def _by_kind(module: Any) -> torch.Tensor:
    """Permutation of Qwen3-Next's columns from the order by key head to the order by kind: i64[columns]."""
    num_groups = module.num_k_heads
    per_group = module.num_v_heads // num_groups
    key_size = module.head_k_dim
    value_size = per_group * module.head_v_dim
    sizes = [key_size, key_size, value_size, value_size]
    wide = torch.arange(num_groups * sum(sizes))
    narrow = torch.arange(2 * module.num_v_heads)
    narrow += len(wide)
    kinds = [
        *wide.view(num_groups, -1).split(sizes, 1),
        *narrow.view(num_groups, -1).split(per_group, 1),
    ]
    return torch.cat([kind.flatten() for kind in kinds])
