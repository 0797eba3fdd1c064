"""Experts shared out among the ranks of all engines: each rank holds some whole experts of every layer, and computes
them for the tokens of all engines. Worker process.

Attention stays data parallel. In each layer with experts the engines exchange their tokens with the experts that the
router chose, every rank computes its own experts, and the sum over all ranks is every token's result. All ranks must
therefore run such a layer equally often, with any number of tokens, none included.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch.nn import functional

from tenonry.errors import ConfigError
from tenonry_torch_base.conflicts import Conflicts
from tenonry_torch_base.parallel.layers import resized
from tenonry_torch_base.parallel.shard import Shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tenonry.config import EngineConfig
    from tenonry_torch_base.parallel.groups import ExpertGroups, TensorGroup

FAMILIES = frozenset({"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"})
WEIGHTS = frozenset({"gate_up_proj", "down_proj"})
PAIRS = 1 << 14  # of tokens and experts whose numbers are held together
EXPERTS = -3  # the dimension of experts in a stacked weight [experts, out, in]
OF_ONE_EXPERT = re.compile(r"\.experts\.(\d+)\.")
REMEDY = "leave out --enable-expert-parallel"
CONFLICTS = Conflicts(
    "enable_expert_parallel",
    {
        "pipeline_parallel_size": "experts are shared by whole models; leave one of them out",
        "max_loras": "no adapters are added to shared experts; leave one of them out",
        "max_images": "engines that share experts read text alone; leave one of them out",
        "load_format": "such files hold the parts of tensor ranks; leave one of them out",
    },
)


class PassCounts:
    """Tokens of every engine in the pass under way, exchanged by the first layer with experts: no other layer waits for
    the hosts of the engines.
    """

    __slots__ = ("of_rank",)

    def __init__(self) -> None:
        self.of_rank: list[int] = []


class SpreadExperts:
    """Replaces the forward of a module whose weights hold this rank's experts only. `counts`: of all layers;
    `begins_pass`: for the first one.
    """

    def __init__(
        self, module: Any, groups: ExpertGroups, counts: PassCounts, *, begins_pass: bool
    ) -> None:
        self.module = module
        self.groups = groups
        self.counts = counts
        self.begins_pass = begins_pass

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute this engine's tokens [T, H], the experts of each among all and their weights [T, k] → [T, H]."""
        peers = self.groups.peers
        if self.begins_pass:
            self.counts.of_rank = peers.counts(len(hidden_states))
        given = [hidden_states, top_k_index, top_k_weights]
        (hidden, chosen, weights), begin = exchanged(given, peers, self.counts.of_rank)
        local = chosen - self.groups.everyone.rank * len(self.module.down_proj)
        compute = partial(grouped, self.module) if has_grouped_mm(hidden) else self._own
        made = self.groups.everyone.sum(compute(hidden, local, weights))
        return made.narrow(0, begin, len(hidden_states))

    def _own(
        self, hidden: torch.Tensor, local: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Output of this rank's experts for each token: the module's own code, for each pair of token and expert."""
        out = torch.zeros_like(hidden)
        token, place = ((local >= 0) & (local < len(self.module.down_proj))).nonzero(as_tuple=True)
        if len(token):
            made = type(self.module).forward(
                self.module, hidden[token], local[token, place, None], weights[token, place, None]
            )
            out.index_add_(0, token, made)
        return out


def has_grouped_mm(x: torch.Tensor) -> bool:
    """Return True if torch multiplies groups of rows of `x` on its device: on CUDA in bfloat16 alone, from compute
    capability 8.0 on.
    """
    if x.device.type != "cuda":
        return x.device.type != "cpu"
    is_able = torch.cuda.get_device_capability(x.device) >= (8, 0)
    return x.dtype == torch.bfloat16 and is_able


def grouped(
    module: Any, hidden: torch.Tensor, local: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Compute like the module's own code, for pairs `local` i64[T, k] in the range of its experts; the others add
    nothing.

    No size depends on a value, so the host reads none. The number of pairs of other ranks is then unknown; to bound
    their memory, at most `PAIRS` are computed together.
    """
    tile = max(1, PAIRS // local.shape[1])
    if len(local) <= tile:
        return _grouped(module, hidden, local, weights)
    parts = zip(hidden.split(tile), local.split(tile), weights.split(tile), strict=True)
    return torch.cat([_grouped(module, *part) for part in parts])


def _grouped(
    module: Any, hidden: torch.Tensor, local: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Sort pairs by expert, those of other ranks last; grouped products stop before these."""
    count = len(module.down_proj)
    pairs = local.reshape(-1)
    keys = torch.where((pairs >= 0) & (pairs < count), pairs, count)
    expert, order = keys.sort(stable=True)
    ends = torch.searchsorted(expert, torch.arange(count, device=expert.device), right=True).int()
    x = hidden.index_select(0, order // local.shape[1])
    gate, up = grouped_mm(x, module.gate_up_proj.transpose(1, 2), offs=ends).chunk(2, -1)
    made = grouped_mm(module.act_fn(gate) * up, module.down_proj.transpose(1, 2), offs=ends)
    weighted = made * weights.reshape(-1, 1).index_select(0, order)
    weighted = weighted.masked_fill((expert == count)[:, None], 0.0)
    out = torch.empty_like(weighted).index_copy_(0, order, weighted)
    return out.view(*local.shape, -1).sum(1).to(hidden.dtype)


def grouped_mm(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows of `x` up to `offs`[i] times matrix i. The name before torch 2.10 has an underscore."""
    multiply = getattr(functional, "grouped_mm", None) or torch._grouped_mm  # noqa: SLF001
    made: torch.Tensor = multiply(x, weights, offs=offs)
    return made


def exchanged(
    tensors: Sequence[torch.Tensor], peers: TensorGroup, counts: Sequence[int]
) -> tuple[list[torch.Tensor], int]:
    """Tensors [T, …] of every rank, concatenated by rank: [sum of all T, …]; and the offset of this rank's.

    `counts`: T of every rank. Rows travel as bytes, all tensors in one exchange, padded to the longest.
    """
    if peers.size == 1:
        return list(tensors), 0
    rows = [tensor.contiguous().view(torch.uint8) for tensor in tensors]
    sent = rows[0].new_zeros(max(counts), sum(row.shape[1] for row in rows))
    torch.cat(rows, 1, out=sent[: len(rows[0])])
    every = peers.stack(sent)
    joined = torch.cat([of_rank[:length] for of_rank, length in zip(every, counts, strict=True)])
    pieces = joined.split([row.shape[1] for row in rows], 1)
    found = [
        piece.contiguous().view(tensor.dtype) for piece, tensor in zip(pieces, tensors, strict=True)
    ]
    return found, sum(counts[: peers.rank])


def spread_experts(model: nn.Module, groups: ExpertGroups) -> dict[str, Shard]:
    """Keep this rank's experts in every layer; parameter name → its part of the checkpoint. Raises ModelError."""
    shards: dict[str, Shard] = {}
    rank = groups.everyone.rank
    size = groups.everyone.size
    counts = PassCounts()
    for number, (name, module) in enumerate(expert_modules(model).items()):
        for part in WEIGHTS:
            key = f"{name}.{part}"
            shard = Shard(EXPERTS, rank, size)
            whole = getattr(module, part)
            setattr(module, part, resized(whole, shard.shape(whole.shape, key)))
            shards[key] = shard
        module.num_experts = len(module.down_proj)
        module.forward = SpreadExperts(module, groups, counts, begins_pass=number == 0)
    return shards


def expert_modules(model: nn.Module) -> dict[str, Any]:
    """The modules with stacked weights of experts, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if {part for part, _ in module.named_parameters(recurse=False)} == WEIGHTS
    }


def expert_of(key: str, shard: Shard | None) -> int | None:
    """Return the expert of the checkpoint's tensor `key`; None without expert parallelism, or for stacked experts."""
    found = OF_ONE_EXPERT.search(key) if is_spread(shard) else None
    return None if found is None else int(found[1])


def holds(shard: Shard | None, expert: int, num_experts: int) -> bool:
    """Return True if `shard` has that expert of `num_experts`."""
    return shard is not None and expert * shard.count // num_experts == shard.index


def is_spread(shard: Shard | None) -> TypeGuard[Shard]:
    """Return True if a parameter is distributed by experts."""
    return shard is not None and shard.dim == EXPERTS


def check_experts(whole: nn.Module, config: EngineConfig) -> None:
    """Raises ConfigError, before a weight is read, for a model whose experts cannot be shared out."""
    family = f"{type(whole).__name__} (family '{whole.config.model_type}')"
    size = config.data_parallel_size * config.tensor_parallel_size
    modules = expert_modules(whole)
    if not modules:
        raise ConfigError(f"enable_expert_parallel: {family} has no experts; {REMEDY}")
    if whole.config.model_type not in FAMILIES:
        raise ConfigError(
            f"enable_expert_parallel: worker 'torch' shares out the experts of {', '.join(sorted(FAMILIES))}, and not "
            f"those of {family}; {REMEDY}"
        )
    for name, module in modules.items():
        count = len(module.down_proj)
        if count % size:
            raise ConfigError(
                f"enable_expert_parallel: {name} of {family} has {count} experts, which {size} ranks "
                f"(data_parallel_size={config.data_parallel_size} x tensor_parallel_size="
                f"{config.tensor_parallel_size}) do not divide; use a number of ranks that does"
            )


def check_settings(config: EngineConfig) -> None:
    """Raise ConfigError for one rank, and for a first node without expert parallelism."""
    if config.data_parallel_size * config.tensor_parallel_size == 1:
        raise ConfigError(
            f"enable_expert_parallel with one rank: it has all experts anyway; raise data_parallel_size, or {REMEDY}"
        )
    if config.data_parallel_size > 1 and not config.expert_rendezvous:
        raise ConfigError(
            "enable_expert_parallel: the first node was started without it, so the engines have no place to meet; "
            "give --enable-expert-parallel on all nodes"
        )
