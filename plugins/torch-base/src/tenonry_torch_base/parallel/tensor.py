"""Shards the layers of a model without weights for this rank, by its tensor parallel plan. Worker process.

Styles follow transformers. A linear layer cut along its outputs stays an `nn.Linear`, only smaller; one cut along its
inputs, or whose outputs are gathered, becomes a module that communicates with the other ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from tenonry.errors import ModelError
from tenonry_torch_base.parallel.layers import (
    GatherLinear,
    RowLinear,
    SumOutput,
    VocabularyLookup,
    resized,
)
from tenonry_torch_base.parallel.plan import matching, tensor_plan
from tenonry_torch_base.parallel.shard import Shard

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import TensorGroup

# Every rank keeps the whole module; some of these styles differ in gradients only.
WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj", "local_params"})
SUMMED = frozenset({"moe_tp_experts", "all_reduce"})
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
SPLIT_INPUT = frozenset({"rowwise_split_input", "rowwise_rep"})
QUERY = frozenset({"q_proj", "q_b_proj", "kv_b_proj", "query_key_value"})
KEY_VALUE = frozenset({"k_proj", "v_proj"})
STACKED = frozenset({"colwise", "rowwise", "packed_colwise", "packed_rowwise"})
STYLES = WHOLE | SUMMED | GATHERED | SPLIT_INPUT | STACKED | {"embedding_rowwise"}


def shard_layers(
    model: PreTrainedModel, group: TensorGroup, done: frozenset[str] = frozenset()
) -> dict[str, Shard]:
    """Shard the model for this rank; parameter name → its part of the checkpoint. `done`: parameters that are
    distributed already, and whose modules stay unchanged.

    Raises ModelError for a family without a plan, a style that is not known, and sizes that do not divide.
    """
    layers, head = tensor_plan(model, group.size)
    check_heads(model, layers, group.size)
    check_activations(model)
    cutter = Cutter(model, group, done)
    cutter.apply(layers)
    if not cutter.shards:
        raise ModelError(
            f"the tensor parallel plan of {type(model).__name__} fits none of its layers; use tensor_parallel_size=1"
        )
    cutter.apply(head)
    cutter.check_sums()
    return cutter.shards


def check_activations(model: PreTrainedModel) -> None:
    """Raises ModelError for a family whose feed-forward compares activations of a whole layer (Gemma 3n)."""
    config = model.config.get_text_config()
    if any(getattr(config, "activation_sparsity_pattern", None) or ()):
        raise ModelError(
            f"{type(model).__name__} picks the largest activations of a layer (activation_sparsity_pattern), which a "
            "rank with a piece of it cannot; use tensor_parallel_size=1"
        )


def check_heads(model: PreTrainedModel, plan: dict[str, str], size: int) -> None:
    """Raises ModelError, with the numbers, when the plan cuts heads and they cannot be shared out evenly."""
    cut = {pattern.rpartition(".")[2] for pattern, style in plan.items() if style == "colwise"}
    config = model.config.get_text_config()
    family = type(model).__name__
    for each in layer_configs(config):
        heads = int(each.num_attention_heads)
        kv_heads = int(getattr(each, "num_key_value_heads", None) or heads)
        if cut & QUERY and heads % size:
            raise ModelError(
                f"{family} has {heads} attention heads, which tensor_parallel_size={size} does not divide; use a "
                "number that does"
            )
        if cut & KEY_VALUE and kv_heads % size and size % kv_heads:
            raise ModelError(
                f"{family} has {kv_heads} KV heads: tensor_parallel_size={size} must divide them, or be a multiple of "
                "them; use a number that does, or 1"
            )


def layer_configs(config: Any) -> list[Any]:
    """The configuration as each layer has it, where transformers has sizes that differ from layer to layer."""
    if not getattr(config, "is_heterogeneous", False):
        return [config]
    return [config.per_layer_config[number] for number in range(int(config.num_hidden_layers))]


class Cutter:
    """Applies styles to one model and records the shards."""

    def __init__(
        self, model: PreTrainedModel, group: TensorGroup, done: frozenset[str] = frozenset()
    ) -> None:
        self.model = model
        self.group = group
        self.shards: dict[str, Shard] = {}
        owners = {key.rpartition(".")[0] for key in done}
        parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        self._names = [name for name, _ in model.named_modules() if name not in owners]
        self._parameters = [name for name in parameters if name not in done]
        self._summed: list[str] = []
        self._tied: dict[str, str] = dict(model.all_tied_weights_keys)

    def apply(self, plan: dict[str, str]) -> None:
        """Shard the modules that match a plan's patterns. One without a match belongs to another stage or option."""
        for pattern, style in plan.items():
            if style not in STYLES:
                raise ModelError(
                    f"{type(self.model).__name__} plans the style '{style}' for {pattern}, which worker 'torch' does "
                    f"not support (it does {', '.join(sorted(STYLES))}); use tensor_parallel_size=1"
                )
            if style in WHOLE:
                continue
            for name in matching(pattern, self._names):
                self._cut_module(name, self.model.get_submodule(name), style)
            for name in matching(pattern, self._parameters):
                self._cut_parameter(name, style)

    def check_sums(self) -> None:
        """Check that all contents of a summed module are cut, since they would be added once per rank otherwise."""
        for name in self._summed:
            for key, _ in self.model.get_submodule(name).named_parameters(prefix=name):
                if key not in self.shards:
                    raise ModelError(
                        f"{key} is not in the tensor parallel plan of {type(self.model).__name__}, but its output is "
                        "summed over the ranks; use tensor_parallel_size=1"
                    )

    # ------------------------------------------------------------------ modules

    def _cut_module(self, name: str, module: nn.Module, style: str) -> None:
        if style in SUMMED:
            module.register_forward_hook(SumOutput(self.group))
            self._summed.append(name)
        elif style == "embedding_rowwise" and isinstance(module, nn.Embedding):
            self._cut_embedding(name, module)
        elif type(module) is nn.Linear:
            self._cut_linear(name, module, style)
        elif not isinstance(module, nn.Identity):  # held by another stage
            raise ModelError(
                f"{name} is a {type(module).__name__}, which worker 'torch' cannot cut ('{style}'); use "
                "tensor_parallel_size=1"
            )

    def _cut_linear(self, name: str, module: nn.Linear, style: str) -> None:
        size = self.group.size
        if style == "rowwise" or style in SPLIT_INPUT:
            self._cut(name, module, "weight", Shard(-1, self.group.rank, size))
            self._replace(name, RowLinear(module, self.group, splits_input=style in SPLIT_INPUT))
            return
        shard = self._output_shard(name, module, style)
        for part in ("weight", "bias"):
            if getattr(module, part) is not None:
                dim = -2 if part == "weight" else -1
                self._cut(name, module, part, Shard(dim, *shard))
        if style in GATHERED:
            made = GatherLinear(module, self.group)
            self._replace(name, made)
            self._cut_tied(f"{name}.weight")
        else:
            module.out_features = module.weight.shape[0]

    def _output_shard(self, name: str, module: nn.Linear, style: str) -> tuple[int, int, int, bool]:
        """Index, count, parts and padding of a cut along the outputs; where KV heads are few, ranks share them."""
        rank = self.group.rank
        size = self.group.size
        if name.rpartition(".")[2] in KEY_VALUE and style == "colwise":
            heads = self._kv_heads(name, module)
            if heads < size:
                return rank * heads // size, heads, 1, False
        return rank, size, 2 if style == "packed_colwise" else 1, style in GATHERED

    def _kv_heads(self, name: str, module: nn.Linear) -> int:
        attention = self.model.get_submodule(name.rpartition(".")[0])
        config = self.model.config.get_text_config()
        head_dim = int(
            getattr(attention, "head_dim", 0) or config.hidden_size // config.num_attention_heads
        )
        if name.endswith("v_proj"):  # values may be of another size
            head_dim = int(getattr(attention, "v_head_dim", 0) or head_dim)
        heads = module.out_features // head_dim
        if heads % self.group.size and self.group.size % heads:
            raise ModelError(
                f"{name} has {heads} KV heads, which {self.group.size} ranks cannot share evenly; use "
                "tensor_parallel_size=1"
            )
        return heads

    def _cut_embedding(self, name: str, module: nn.Embedding) -> None:
        shard = Shard(-2, self.group.rank, self.group.size, is_padded=True)
        self._cut(name, module, "weight", shard)
        module.padding_idx = None  # an index into the whole vocabulary
        module.forward = VocabularyLookup(module, self.group)  # type: ignore[method-assign]

    def _cut_tied(self, head: str) -> None:
        """Cut an embedding that shares the head's weight: each rank looks up its own tokens."""
        name = self._tied.get(head, "").rpartition(".")[0]
        embedding = self.model.get_submodule(name) if name in self._names else None
        if isinstance(embedding, nn.Embedding) and not isinstance(
            embedding.forward, VocabularyLookup
        ):
            self._cut_embedding(name, embedding)

    # ------------------------------------------------------------------ parameters

    def _cut_parameter(self, name: str, style: str) -> None:
        """A parameter that a plan names itself: the stacked weights [experts, out, in] of an experts module, or a
        vector with an element per output, such as a sink per head.
        """
        owner, _, part = name.rpartition(".")
        rank = self.group.rank
        size = self.group.size
        parts = 2 if style.startswith("packed") else 1
        module = self.model.get_submodule(owner)
        num_dims = getattr(module, part).dim()
        if num_dims == 1 and style == "colwise":
            self._cut(owner, module, part, Shard(-1, rank, size))
            return
        if style not in STACKED or num_dims != 3:
            raise ModelError(
                f"parameter {name} cannot be cut in the style '{style}'; use tensor_parallel_size=1"
            )
        dim = -1 if style.endswith("rowwise") else -2
        self._cut(owner, module, part, Shard(dim, rank, size, parts))

    def _cut(self, name: str, module: nn.Module, part: str, shard: Shard) -> None:
        old = getattr(module, part)
        key = f"{name}.{part}"
        if key in self.shards:
            raise ModelError(
                f"{key} is cut twice by the tensor parallel plan; use tensor_parallel_size=1"
            )
        setattr(module, part, resized(old, shard.shape(old.shape, key)))
        self.shards[key] = shard

    def _replace(self, name: str, module: nn.Module) -> None:
        parent, _, child = name.rpartition(".")
        setattr(self.model.get_submodule(parent), child, module)
