"""Paths of our own for the decoding rows of layers with state, each compared with its module. Worker process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.mixers.build import set_path
from tenonry_worker_torch.fuse.mixers.verify import path_agrees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.state.mixer import PackedMixer

logger = logging.getLogger("tenonry.worker")


def use_paths(
    mixers: Iterable[PackedMixer], changes: Changes, all_agree: Callable[[bool], bool] = bool
) -> bool:
    """Assign a verified path to each mixer of a known mechanism; returns True if any has one.

    One mixer of each kind is compared. Ranks that share layers must decide alike: `all_agree` is true if it is true on
    all of them.
    """
    verdicts: dict[tuple[object, ...], bool] = {}
    for mixer in mixers:
        kind = _kind_of(mixer.module)
        if kind not in verdicts:
            verdicts[kind] = all_agree(_has_right_path(mixer))
        if verdicts[kind]:
            changes.on_undo(partial(drop_path, mixer))
            set_path(mixer)
    return any(verdicts.values())


def drop_path(mixer: PackedMixer) -> None:
    """Use the module's own code for decoding rows."""
    mixer.path = None
    mixer.prompt_path = None


def renew_paths(mixers: Iterable[PackedMixer]) -> None:
    """Rebuild each path from its module, after the linear layers inside were replaced."""
    for mixer in mixers:
        if mixer.path is not None:
            set_path(mixer)


def _has_right_path(mixer: PackedMixer) -> bool:
    try:
        found = path_agrees(mixer)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        logger.warning("%s: fused mixer failed; using the original module: %r", mixer.kind, error)
        return False
    if found is False:
        logger.info(
            "%s: fused mixer differs from the reference; using the original module", mixer.kind
        )
    return bool(found)


def _kind_of(module: nn.Module) -> tuple[object, ...]:
    shapes = tuple((name, weight.shape) for name, weight in module.named_parameters())
    return (type(module), shapes)
