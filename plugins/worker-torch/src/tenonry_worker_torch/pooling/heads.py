"""Activations of classification heads, from logits to scores. Worker process.

One label: a sigmoid, as cross-encoders of sentence-transformers do, unless their own field names another activation.
Several: the one for `problem_type` of transformers, a softmax without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Identity": lambda logits: logits,
    "Sigmoid": torch.sigmoid,
    "Softmax": lambda logits: torch.softmax(logits, -1),
}
PROBLEMS = {
    "regression": "Identity",
    "single_label_classification": "Softmax",
    "multi_label_classification": "Sigmoid",
}


def activation_of(config: Any, architecture: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function from logits [..., labels] to scores. Raises ModelError for an unknown one."""
    own = getattr(config, "sentence_transformers", None)
    named = own.get("activation_fn") if isinstance(own, dict) else None
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    problem = getattr(config, "problem_type", None)
    if named is not None:
        name = str(named).rsplit(".", 1)[-1]
    elif config.num_labels == 1:
        name = "Identity" if problem == "regression" else "Sigmoid"
    else:
        name = PROBLEMS.get(str(problem), "Softmax")
    if name not in ACTIVATIONS:
        raise ModelError(
            f"{architecture}: config.json asks for the activation {named!r}; worker 'pooling' knows "
            f"{', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
