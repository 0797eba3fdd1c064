"""Several tokens of rows that decode in one call, by a kernel for bfloat16. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from tenonry_torch_base.round_kernel import RoundEnds
from tenonry_torch_base.step_kernels import RoundParts
from tenonry_worker_torch.fuse.decoder import FusedHead
from tenonry_worker_torch.fuse.rope import RopeTable
from tenonry_worker_torch_cpu.kernels.linear import KernelLinear
from tenonry_worker_torch_cpu.kernels.paged import TOLERANCE, paged_keys, trial_step
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.paged_attention import PagedKernel, PagedKeys
    from tenonry_torch_base.round_kernel import RoundKernel, RoundTokens
    from tenonry_torch_base.step_kernels import LayerKernel
    from tenonry_worker_torch.fuse.decoder import FusedForward

ROWS = 2  # of a trial
FIRST_IDS = 64  # their tokens are among these


class WholeRounds(NamedTuple):
    """Kernel for passes of at most `most` rows. `layers`: K/V locations of each one."""

    layers: tuple[AttentionLayer, ...]
    kernel: RoundKernel
    most: int

    def __call__(self, token_ids: torch.Tensor, keys: PagedKeys, ends: RoundEnds) -> RoundTokens:
        blocks = [layer.kv_cache[0].both for layer in self.layers]
        return self.kernel(token_ids, keys, blocks, ends)


def round_parts(
    forward: FusedForward, layers: Sequence[LayerKernel], rope: RopeTable
) -> RoundParts | None:
    """Return the parts of a model; None if its rotary tables or modules outside the layers are unsupported."""
    embed, end = forward.embed, forward.end
    if type(rope) is not RopeTable:
        return None
    if type(embed) is not nn.Embedding or not isinstance(end, FusedHead) or end.softcap:
        return None
    is_plain = embed.max_norm is None and embed.weight.dtype == torch.bfloat16
    head = end.head
    if not is_plain or end.norm.weight is None or not isinstance(head, KernelLinear):
        return None
    weight = head.own.blocked()
    if weight is None or weight.outputs > len(embed.weight):  # a token has an embedding
        return None
    return RoundParts(
        layers,
        embed.weight.detach().contiguous(),
        rope.cos.contiguous(),
        rope.sin.contiguous(),
        end.norm.weight.detach().float().contiguous(),
        end.norm.eps,
        weight,
    )


def round_candidates(
    forward: FusedForward,
    kernel: RoundKernel,
    layer: LayerKernel,
    attends: PagedKernel,
    rope: RopeTable,
) -> Candidates:
    """A pass of the first layer alone between embedding and head: the logit of the token that is chosen, and the
    largest.
    """
    own = forward.layers[0].attention
    name = own.spec.name  # type: ignore[attr-defined] - has parts
    first, second = (trial_step(own, rope, ROWS, {name: attends}) for _ in range(2))  # type: ignore[arg-type]
    cos, sin = first.after_entering(rope)
    second.after_entering(rope)
    ids = torch.randint(0, min(FIRST_IDS, len(forward.embed.weight)), (ROWS,))  # type: ignore[union-attr]
    ends = RoundEnds(1, torch.full((ROWS, 1), -1), torch.zeros(ROWS, dtype=torch.int64))

    def logits() -> torch.Tensor:
        return forward.end(layer(forward.embed(ids), cos, sin, paged_keys(first))).float()  # type: ignore[misc]

    known = logits()

    def chosen() -> tuple[torch.Tensor, ...]:
        made = kernel(ids.int(), paged_keys(second), [second.cache.both], ends)
        return (known.gather(1, made.token_ids.long()), second.kept())

    return Candidates(
        lambda: (logits().amax(1, keepdim=True), first.kept()), chosen, TOLERANCE, is_timed=False
    )
