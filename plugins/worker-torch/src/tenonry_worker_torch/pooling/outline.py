"""Outline of a folder's model before its weights: class, tasks, rejections. Worker process."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.folder import architecture_of, check_folder
from tenonry_torch_base.weights import progress_only_on_a_terminal, read_model_config
from tenonry_worker_torch.pooling.dense import DenseSpec, read_dense
from tenonry_worker_torch.pooling.heads import activation_of
from tenonry_worker_torch.pooling.recipe import read_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig, PreTrainedModel

HEAD = "ForSequenceClassification"


class Outline:
    """`whole` has no storage. `activation` is None without a classification head; then `modes`, `dense` and `normalize`
    define the conversion of hidden states to a vector. `checkpoint` is None with random weights. `build` are options of
    the class.
    """

    __slots__ = (
        "activation",
        "architecture",
        "build",
        "checkpoint",
        "config",
        "dense",
        "modes",
        "normalize",
        "whole",
    )

    def __init__(self, config: PretrainedConfig, architecture: str) -> None:
        self.config = config
        self.architecture = architecture
        self.activation: Callable[[torch.Tensor], torch.Tensor] | None = None
        self.modes: tuple[str, ...] = ()
        self.dense: tuple[DenseSpec, ...] = ()
        self.normalize = True
        self.checkpoint: Checkpoint | None = None
        self.build: dict[str, Any] = {}
        self.whole: PreTrainedModel

    @property
    def tasks(self) -> dict[str, int]:
        """As `EngineInfo.tasks`."""
        if self.activation is None:
            width = int(self.config.get_text_config().hidden_size) * len(self.modes)
            return {"embed": self.dense[-1].width_out if self.dense else width}
        labels = int(self.config.num_labels)
        return {"score": 1, "classify": 1} if labels == 1 else {"classify": labels}


def outline(path: str, *, needs_weights: bool, mode: str | None) -> Outline:
    """Examine the folder's model without storage. Raises ModelError with the class, the reason and a remedy."""
    raw = check_folder(path, needs_weights=needs_weights)
    architecture = architecture_of(raw)
    recipe = read_recipe(path)
    with progress_only_on_a_terminal():
        config = read_model_config(path, architecture)
        found = Outline(config, architecture)
        if architecture.endswith(HEAD):
            if mode is not None or recipe.modes:
                raise ModelError(
                    f"{architecture} has a classification head, whose scores are not pooled; leave out modules.json "
                    "and the option pooling"
                )
            found.activation = activation_of(config, architecture)
        else:
            found.modes = recipe.modes or (_own_mode(config),)
            if mode is not None:
                found.modes = (mode,)
            found.normalize = recipe.normalize
            for folder in recipe.dense:
                width = next(iter(found.tasks.values()))
                found.dense += (read_dense(folder, width, needs_weights=needs_weights),)
        found.whole = _skeleton(found)
    if found.whole.main_input_name != "input_ids":
        raise ModelError(
            f"{type(found.whole).__name__} reads {found.whole.main_input_name}, not text; worker 'pooling' serves text"
        )
    if needs_weights:
        found.checkpoint = Checkpoint(path, found.whole)
        found.checkpoint.check(found.whole)
    return found


def _own_mode(config: PretrainedConfig) -> str:
    """Default for folders without a pooling mode: the mean with bidirectional attention, otherwise the last token."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind = type(config)
    sees_all = kind in AutoModelForMaskedLM._model_mapping  # noqa: SLF001
    generates = kind in AutoModelForCausalLM._model_mapping  # noqa: SLF001
    return "mean" if sees_all or not generates else "lasttoken"


def _skeleton(found: Outline) -> PreTrainedModel:
    from transformers import AutoModel, AutoModelForSequenceClassification

    config = found.config
    architecture = found.architecture
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f"{architecture} has an encoder and a decoder; worker 'pooling' serves models of one stack"
        )
    auto: Any = AutoModel if found.activation is None else AutoModelForSequenceClassification
    if type(config) not in auto._model_mapping:  # noqa: SLF001
        raise ModelError(f"{architecture}: transformers has no {auto.__name__} of it")
    kind = auto._model_mapping[type(config)]  # noqa: SLF001
    if isinstance(kind, tuple):
        kind = kind[0]
    if "add_pooling_layer" in inspect.signature(kind.__init__).parameters:
        found.build = {"add_pooling_layer": False}  # its output is not used, and some files lack it
    try:
        with torch.device("meta"):
            whole: PreTrainedModel = kind._from_config(config, **found.build)  # noqa: SLF001
    except Exception as error:  # of the family's own code, possibly by a wrong config
        raise ModelError(
            f"the config.json of {architecture} does not describe a model: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}"
        ) from error
    return whole
