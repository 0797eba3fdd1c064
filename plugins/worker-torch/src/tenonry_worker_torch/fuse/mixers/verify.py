"""Compares a path with the mixer that it was made from, in float32 on random weights. Worker process.

A copy of the mixer receives a prompt, and then, row by row, further tokens; the path continues from the same states.
Both outputs and states are compared, after each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.seeded import seeded
from tenonry_worker_torch.fuse.mixers.build import path_of, prompt_path_of
from tenonry_worker_torch.fuse.trial import is_same, is_small, random_copy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from tenonry_worker_torch.state.layer_cache import StateKey
    from tenonry_worker_torch.state.mixer import DecodePath, PackedMixer

ROWS = 3
LENGTH = 5
FURTHER_TOKENS = 3


def path_agrees(mixer: PackedMixer) -> bool | None:
    """Compare a path; None without one. A mixer too large to copy is covered by the whole model's comparison."""
    module = mixer.module
    if not mixer.takes_hidden_only:
        return None
    if not is_small(module):
        return None if path_of(module) is None else True
    device = next(module.parameters()).device
    with seeded(0, device), torch.no_grad():
        copied = random_copy(module)
        del copied.forward  # the copy runs its class's code
        path = path_of(copied)
        return None if path is None else _same(mixer, copied, path)


def _same(mixer: PackedMixer, copied: nn.Module, path: DecodePath) -> bool:
    device = next(copied.parameters()).device
    cache = mixer.state.empty()

    def given(x: torch.Tensor) -> Any:
        return mixer.argument.call(copied.forward, (x,), {}, cache)

    prompts = prompt_path_of(path, device)
    states = None
    for length in (LENGTH, LENGTH - 1):
        prompt = torch.randn(ROWS, length, mixer.hidden_size, device=device)
        wanted = given(prompt)
        if prompts is not None:
            made, states = prompts(prompt, states)
            if not is_same(made, wanted) or not _are_same(states, mixer.state.taken_from(cache)):
                return False
    held = {key: state.clone() for key, state in mixer.state.taken_from(cache)}
    for _ in range(FURTHER_TOKENS):
        token = torch.randn(ROWS, mixer.hidden_size, device=device)
        wanted = given(token[:, None])
        if not isinstance(wanted, torch.Tensor):
            return False
        if not is_same(path(token, held), wanted[:, 0]):
            return False
        if not _are_same(held, mixer.state.taken_from(cache)):
            return False
    return True


def _are_same(
    got: Mapping[StateKey, torch.Tensor], wanted: Iterable[tuple[StateKey, torch.Tensor]]
) -> bool:
    return all(is_same(got[key], state) for key, state in wanted)
