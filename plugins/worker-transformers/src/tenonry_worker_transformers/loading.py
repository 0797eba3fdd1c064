"""From a folder to a model that `generate` can run: its class, rejections, weights. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.dummy import RandomSlice
from tenonry_torch_base.folder import architecture_of, check_folder
from tenonry_torch_base.read_ahead import read_ahead
from tenonry_torch_base.ties import settle_ties
from tenonry_torch_base.weights import (
    check_complete,
    progress_only_on_a_terminal,
    read_model_config,
    skeleton,
    stored_model,
    weights_of,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


class Outline:
    """A model before its weights: `config`, `whole` (without storage), `architecture`, and its stored tensors;
    `checkpoint` is None with random weights.
    """

    __slots__ = ("architecture", "checkpoint", "config", "whole")

    def __init__(self, config: PretrainedConfig, whole: PreTrainedModel, architecture: str) -> None:
        self.config = config
        self.whole = whole
        self.architecture = architecture
        self.checkpoint: Checkpoint | None = None


def outline(path: str, *, needs_weights: bool) -> Outline:
    """The folder's model without storage. Raises ModelError when `generate` cannot run it on text."""
    raw = check_folder(path, needs_weights=needs_weights)
    architecture = architecture_of(raw)
    with progress_only_on_a_terminal():
        config = read_model_config(path, architecture)
        whole = _skeleton(config, architecture, path)
    for reason in refusals(whole):
        raise ModelError(f"{architecture} cannot run on worker 'transformers': {reason}")
    found = Outline(config, whole, architecture)
    if needs_weights:
        built = [whole]

        def make() -> tuple[PreTrainedModel, Checkpoint]:
            model = built.pop() if built else _skeleton(config, architecture, path)
            return model, Checkpoint(path, model)

        with progress_only_on_a_terminal():
            found.whole, found.checkpoint = settle_ties(config, make)
        found.checkpoint.check(found.whole)
    return found


def _skeleton(config: PretrainedConfig, architecture: str, path: str) -> PreTrainedModel:
    return _encoder_decoder(config, architecture) or skeleton(config, architecture, path)


def _encoder_decoder(config: PretrainedConfig, architecture: str) -> PreTrainedModel | None:
    """The model without storage if it has an encoder and a decoder, and is not one's decoder alone."""
    from transformers import AutoModelForSeq2SeqLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if not getattr(config, "is_encoder_decoder", False):
        return None
    if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return None
    try:
        with torch.device("meta"):
            return AutoModelForSeq2SeqLM.from_config(config, trust_remote_code=False)
    except (ValueError, ImportError) as error:
        raise ModelError(
            f"{architecture} has an encoder that does not read text: transformers lists it under no model that turns "
            "text into text"
        ) from error
    except Exception as error:  # of the family's own code, which a config may mislead
        raise ModelError(
            f"the config.json of {architecture} does not describe a model: {type(error).__name__}: {error}"
        ) from error


def refusals(whole: PreTrainedModel) -> list[str]:
    """Reasons why `generate` cannot run the model on text, phrased to follow its name."""
    from transformers import GenerationMixin

    kind = type(whole).__name__
    if not isinstance(whole, GenerationMixin):
        return [f"{kind} cannot generate: it has no `generate`"]
    encoder = whole.get_encoder() if whole.config.is_encoder_decoder else None
    inputs = {whole.main_input_name, getattr(encoder, "main_input_name", "input_ids")}
    found = [f"{kind} reads {name}, not text" for name in sorted(inputs - {"input_ids"})]
    if getattr(type(whole), "generate", None) is not GenerationMixin.generate:
        found.append(
            f"{kind} has a `generate` of its own, whose steps cannot be taken one at a time"
        )
    found += _random_reasons(whole)
    return found


def _random_reasons(whole: PreTrainedModel) -> list[str]:
    """Reformer's attention sorts tokens into buckets by hashes that it draws anew in every call."""
    config = whole.config
    if "lsh" in (getattr(config, "attn_layers", None) or ()) and config.hash_seed is None:
        reason = "draws its hashes at random in every call, so no answer could be repeated"
        return [f"{type(whole).__name__} {reason}; set hash_seed in config.json to a number"]
    return []


def load_model(
    found: Outline, path: str, *, dtype: str, device: torch.device, seed: int
) -> PreTrainedModel:
    """The model with its weights on `device`, in evaluation mode. Raises ModelError."""
    chosen = choose_dtype(dtype, found.config, device)
    with progress_only_on_a_terminal():
        if found.checkpoint is None:
            model = _random_model(found, path, chosen, seed)
        else:
            with weights_of(found.architecture, path):
                read_ahead(found.checkpoint)
            found.checkpoint.log()
            model = stored_model(path, found.whole, chosen, found.architecture, found.checkpoint)
    return model.to(device).eval().requires_grad_(False)


def _random_model(found: Outline, path: str, dtype: torch.dtype, seed: int) -> PreTrainedModel:
    weights = random_weights(found.whole, seed)
    with weights_of(found.architecture, path):
        model, info = type(found.whole).from_pretrained(
            None, state_dict=weights, config=found.config, dtype=dtype, output_loading_info=True
        )
    info["missing_keys"] = set(info["missing_keys"]) & weights.keys()  # buffers are made
    check_complete(info, path, found.architecture)
    return model


def random_weights(whole: PreTrainedModel, seed: int) -> dict[str, RandomSlice]:
    """As the architecture initialises them, each from its own name and the seed."""
    tied = dict(whole.all_tied_weights_keys)
    names = {name for name, _ in whole.named_parameters()} - tied.keys()
    return {name: RandomSlice(whole, name, seed) for name in sorted(names)}
