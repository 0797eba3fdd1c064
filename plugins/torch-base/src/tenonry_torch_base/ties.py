"""Resolves conflicts between config.json and the files on whether embedding and head share a weight. Worker process.

Follows the rule of transformers, but before loading, so that every split of a model over ranks agrees: two stored
weights that differ are two weights, and if only one of them is stored, it is both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig, PreTrainedModel

    from tenonry_hf_hub import StoredTensor
    from tenonry_torch_base.checkpoint import Checkpoint

CHUNK_BYTES = 16 << 20

Made = tuple["PreTrainedModel", "Checkpoint"]


def settle_ties(config: PretrainedConfig, make: Callable[[], Made]) -> Made:
    """Build `config` with `make`: a model without storage and its files. If these hold another head than the embedding,
    or none, `config` is changed and both are built again.
    """
    whole, checkpoint = make()
    tied = dict(whole.all_tied_weights_keys)
    differing = [name for name, source in tied.items() if _differs(checkpoint, name, source)]
    if differing:
        checkpoint.untied = frozenset(differing)
        note = (
            f"config.json ties {differing[0]} to {tied[differing[0]]}, and the files hold different values for them: "
            "each is used (set tie_word_embeddings to false to say so)"
        )
        if len(differing) == len(tied):
            whole, checkpoint = _rebuilt(config, make, is_tied=False)
        checkpoint.notes.append(note)
        return whole, checkpoint
    return _with_head(config, make, whole, checkpoint)


def _with_head(
    config: PretrainedConfig,
    make: Callable[[], Made],
    whole: PreTrainedModel,
    checkpoint: Checkpoint,
) -> Made:
    """Use the embedding as head if the head is in no file and not tied. transformers would draw a random one."""
    head = _head_name(whole)
    if head is None or head not in checkpoint.missing(whole):
        return whole, checkpoint
    tied_whole, tied_checkpoint = _rebuilt(config, make, is_tied=True)
    source = tied_whole.all_tied_weights_keys.get(head)
    if source is None or {head, source} & {*tied_checkpoint.missing(tied_whole)}:
        return _rebuilt(config, make, is_tied=False)
    tied_checkpoint.notes.append(
        f"{head} is in no file, and config.json does not tie it: {source} is used in its place (set "
        "tie_word_embeddings to true to say so)"
    )
    return tied_whole, tied_checkpoint


def _rebuilt(config: PretrainedConfig, make: Callable[[], Made], *, is_tied: bool) -> Made:
    for each in {id(part): part for part in (config, config.get_text_config())}.values():
        each.tie_word_embeddings = is_tied
    return make()


def _head_name(whole: PreTrainedModel) -> str | None:
    """Name of the head's weight; None for a model without a head."""
    head = whole.get_output_embeddings()
    names = (name for name, module in whole.named_modules() if module is head)
    name = next(names, None)
    return None if name is None else f"{name}.weight"


def _differs(checkpoint: Checkpoint, name: str, source: str) -> bool:
    """Return True if both are stored, with different values."""
    keys = [
        [key for key, target in checkpoint.targets.items() if target == each]
        for each in (name, source)
    ]
    if not all(keys) or checkpoint.is_gguf:
        return False
    (first, *_), (second, *_) = keys
    if checkpoint.is_quantised(first) or checkpoint.is_quantised(second):
        return True
    left, right = checkpoint.tensors[first], checkpoint.tensors[second]
    if left.shape != right.shape:
        return True
    if left.dtype == right.dtype:
        return not _has_same_bytes(left, right)
    return not torch.equal(_read(left, first).float(), _read(right, second).float())


def _has_same_bytes(left: StoredTensor, right: StoredTensor) -> bool:
    with left.file.open("rb") as first, right.file.open("rb") as second:
        first.seek(left.begin)
        second.seek(right.begin)
        rest = left.num_bytes
        while rest > 0:
            count = min(rest, CHUNK_BYTES)
            if first.read(count) != second.read(count):
                return False
            rest -= count
    return True


def _read(tensor: StoredTensor, key: str) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(tensor.file, framework="pt") as file:
        found: torch.Tensor = file.get_tensor(key)
    return found
