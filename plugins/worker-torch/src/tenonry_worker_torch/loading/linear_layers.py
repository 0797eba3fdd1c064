"""Linear layers of a model, the possible targets of adapters. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def linear_layers(whole: PreTrainedModel) -> dict[str, nn.Linear]:
    """The layers that adapters may be for, as far as can be seen without running the model: not the output layer."""
    head = whole.get_output_embeddings()
    return {
        name: module
        for name, module in whole.named_modules()
        if type(module) is nn.Linear and module is not head
    }
