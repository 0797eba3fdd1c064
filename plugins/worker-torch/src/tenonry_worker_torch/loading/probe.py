"""The first run of a model: short prompts, one at a time, attention in plain torch. Worker process.

It learns from the model itself what every attention layer is called with (heads, sizes, scaling, window, soft cap),
and its logits are the reference for the self check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.text_part import set_attention
from tenonry_worker_torch.attention.layer import (
    INTERFACE_NAME,
    LAYER_ATTRIBUTE,
    Probe,
    register_interface,
)
from tenonry_worker_torch.attention.rank_heads import rank_heads_of
from tenonry_worker_torch.parallel.stage import stage_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_torch.attention.base import LayerSpec
    from tenonry_worker_torch.parallel.groups import Link

PROMPT_LENGTHS = (9, 5)


class ProbeResult:
    """Layers in order of their index, the module of each, the prompts and their logits [length, vocabulary].

    `rank_heads`: this rank's heads of each layer whose module hands over those of all ranks. A pipeline stage's prompts
    are the hidden states that it received for them, and its logits those that it sent on: [length, hidden].
    """

    __slots__ = ("logits", "modules", "prompts", "rank_heads", "specs")

    def __init__(self, specs: list[LayerSpec], modules: list[torch.nn.Module]) -> None:
        self.modules = modules
        self.rank_heads = []
        self.specs = []
        for module, spec in zip(modules, specs, strict=True):
            heads = rank_heads_of(module, spec)
            self.rank_heads.append(heads)
            self.specs.append(spec if heads is None else heads.of(spec))
        self.prompts: list[torch.Tensor] = []
        self.logits: list[torch.Tensor] = []


def probe_prompts(vocab_size: int, device: torch.device) -> list[torch.Tensor]:
    """Two prompts of different tokens, spread over the vocabulary."""
    total = sum(PROMPT_LENGTHS)
    numbers = torch.arange(1, total + 1) * 2654435761
    ids = (numbers % max(vocab_size, 1)).to(device)
    return list(ids.split(list(PROMPT_LENGTHS)))


def probe(
    model: PreTrainedModel,
    vocab_size: int,
    link: Link,
) -> ProbeResult:
    """Run the model and describe its attention. Raises ModelError when a layer cannot be served."""
    register_interface()
    set_attention(model, INTERFACE_NAME)
    recorder = Probe({id(module): name for name, module in model.named_modules()})
    modules = list(model.modules())
    for module in modules:
        setattr(module, LAYER_ATTRIBUTE, recorder)
    prompts = probe_prompts(vocab_size, model.device)
    try:
        prompts, logits = run_through(model, prompts, link)
    finally:
        for module in modules:
            delattr(module, LAYER_ATTRIBUTE)
    if not recorder.specs:
        raise ModelError(f"{type(model).__name__} has no attention layer, so it has no KV cache")
    found = [(spec, recorder.modules[key]) for key, spec in recorder.specs.items()]
    if all(spec.index < 0 for spec, _ in found):
        for order, (spec, _) in enumerate(found):
            spec.index = order
    found.sort(key=lambda pair: pair[0].index)
    result = ProbeResult([spec for spec, _ in found], [module for _, module in found])
    result.prompts = prompts
    result.logits = logits
    return result


def run_through(
    model: PreTrainedModel,
    prompts: list[torch.Tensor],
    link: Link,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What this stage is given for each prompt, and what it makes of it, one at a time."""
    given = []
    made = []
    for prompt in prompts:
        given.append(link.inputs(prompt))
        made.append(run_alone(model, given[-1]))
        if not link.is_last:
            link.send(made[-1])
    return given, made


def run_alone(model: PreTrainedModel, prompt: torch.Tensor) -> torch.Tensor:
    """Logits [length, vocabulary] of one prompt, through the attention function that is registered."""
    positions = torch.arange(len(prompt), device=prompt.device)
    with torch.inference_mode():
        return stage_of(model)(model, prompt, positions)
