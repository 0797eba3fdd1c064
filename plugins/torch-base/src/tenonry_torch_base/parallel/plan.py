"""A model's own plans: sharding of each layer, and distribution of the stack. Worker process.

The plans are those of transformers: `base_model_tp_plan` and `base_model_pp_plan` of the configuration, and the model
class's additions for its head.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tenonry.errors import ModelError
from tenonry_torch_base.text_part import text_stack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Stacks can be divided only if layers exchange exactly these.
LAYER_INPUTS = {"hidden_states", "attention_mask"}
LAYER_OUTPUTS = ["hidden_states"]


def tensor_plan(model: PreTrainedModel, size: int) -> tuple[dict[str, str], dict[str, str]]:
    """Name pattern → style: of the layers, and of the head. Raises ModelError for a family without a plan."""
    plan = getattr(_base_config(model), "base_model_tp_plan", None)
    if not plan:
        raise ModelError(
            _no_plan(model, "tensor", f"tensor_parallel_size={size}", "tensor_parallel_size=1")
        )
    prefix, _ = text_stack(model)
    return {f"{prefix}.{name}": style for name, style in plan.items()}, dict(
        type(model)._tp_plan or {}  # noqa: SLF001
    )


def pipeline_plan(model: PreTrainedModel, size: int) -> tuple[list[str], str, list[str]]:
    """Children of the text stack: before the layers, the layers, after them.

    Raises ModelError for a family without a plan, or whose layers exchange more than hidden states.
    """
    plan: dict[str, Any] | None = getattr(_base_config(model), "base_model_pp_plan", None)
    if not plan:
        raise ModelError(
            _no_plan(
                model, "pipeline", f"pipeline_parallel_size={size}", "pipeline_parallel_size=1"
            )
        )
    names = list(plan)
    _, stack = text_stack(model)
    layers = [name for name in names if _is_list(getattr(stack, name, None))]
    if len(layers) != 1:
        raise ModelError(
            f"the pipeline plan of {_family(model)} names {len(layers)} stacks of layers; it must be one. Use "
            "pipeline_parallel_size=1"
        )
    inputs, outputs = plan[layers[0]]
    if not set(inputs) <= LAYER_INPUTS or list(outputs) != LAYER_OUTPUTS:
        odd = sorted({*inputs, *outputs} - LAYER_INPUTS)
        raise ModelError(
            f"the layers of {_family(model)} exchange {', '.join(odd)} besides hidden states, which stages of worker "
            f"'torch' do not pass on; use pipeline_parallel_size=1"
        )
    where = names.index(layers[0])
    return names[:where], layers[0], names[where + 1 :]


def matching(pattern: str, names: list[str]) -> list[str]:
    """Names that match a pattern of a plan; `*` matches one part of a dotted name."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    return [name for name in names if expression.fullmatch(name)]


def _base_config(model: PreTrainedModel) -> Any:
    return model.config.get_text_config()


def _is_list(module: Any) -> bool:
    from torch import nn

    return isinstance(module, nn.ModuleList)


def _family(model: PreTrainedModel) -> str:
    return f"{type(model).__name__} (family '{_base_config(model).model_type}')"


def _no_plan(model: PreTrainedModel, kind: str, asked: str, remedy: str) -> str:
    import transformers

    return (
        f"{_family(model)} has no {kind} parallel plan in transformers {transformers.__version__}, so {asked} is not "
        f"possible; use {remedy}, or a family that has one (llama, qwen3, mistral, gemma3, mixtral, ...)"
    )
