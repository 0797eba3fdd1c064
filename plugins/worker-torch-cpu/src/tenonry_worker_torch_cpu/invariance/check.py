"""Start-up check of batch invariance: the same tokens in other batches, bit for bit. Worker process.

One layer of each type and the head are tried: kernels of layers that differ in their weights alone are the same code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.decoder import FusedForward, FusedHead
from tenonry_worker_torch.invariance import NotInvariantError
from tenonry_worker_torch.loading.prompts import numbered_tokens
from tenonry_worker_torch.loading.self_check import ends_of

if TYPE_CHECKING:
    from tenonry_worker_torch.loading.packed_run import PackedRun

# Tokens of three prompts per step: together and in pieces, in one piece, of which the last tokens alone go on in the
# last layer, and each prompt by itself.
TOGETHER = [[8, 2, 1], [9, 1, 0], [1, 1, 6], [7, 0, 1], [1, 0, 1], [7, 1, 8]]
AT_ONCE = [[33, 5, 17]]
APART = [
    *([count, 0, 0] for count in (17, 1, 7, 1, 7)),
    *([0, count, 0] for count in (2, 1, 1, 1)),
    *([0, 0, count] for count in (1, 6, 1, 1, 8)),
]
HEAD_ROWS = 7  # the largest matrix of many models, read once for each


def require_invariance(
    forward: FusedForward, run: PackedRun, vocab_size: int, architecture: str
) -> None:
    """Raise NotInvariantError if a token's bits depend on its batch."""
    longest = min(len(rope.cos) for rope in forward.ropes.values())
    types = [layer.layer_type for layer in forward.layers]
    short = forward.shortened(sorted({types.index(kind) for kind in types}))
    tokens = numbered_tokens(sum(AT_ONCE[0]), vocab_size, torch.device("cpu"))
    prompts = [prompt[:longest] for prompt in tokens.split(AT_ONCE[0])]
    together, *others = (
        _by_position(short, run, prompts, _within(longest, steps), keeps_all=steps is not AT_ONCE)
        for steps in (TOGETHER, AT_ONCE, APART)
    )
    for other in others:
        shared = together.keys() & other.keys()
        if not all(torch.equal(together[place], other[place]) for place in shared):
            raise _differs(architecture, "a layer")
    if isinstance(forward.end, FusedHead):
        hidden = torch.stack(list(together.values())[:HEAD_ROWS])
        with torch.inference_mode():
            logits = forward.end.logits(hidden)
            alone = [forward.end.logits(row[None].clone())[0] for row in hidden]
        if not torch.equal(logits, torch.stack(alone)):
            raise _differs(architecture, "the head")


def _within(longest: int, steps: list[list[int]]) -> list[list[int]]:
    """The steps of prompts that are cut to `longest` tokens."""
    left = [longest] * len(steps[0])
    cut = []
    for counts in steps:
        some = [min(count, room) for count, room in zip(counts, left, strict=True)]
        left = [room - count for count, room in zip(some, left, strict=True)]
        if any(some):
            cut.append(some)
    return cut


def _by_position(
    forward: FusedForward,
    run: PackedRun,
    prompts: list[torch.Tensor],
    steps: list[list[int]],
    *,
    keeps_all: bool,
) -> dict[tuple[int, int], torch.Tensor]:
    """Prompt and position → hidden state, of all tokens, or of the last one of each step of each prompt."""
    made = run.steps(forward, prompts, steps, keeps_all=keeps_all)
    found = {}
    for prompt, states in enumerate(made):
        positions = range(len(states)) if keeps_all else ends_of(steps, prompt)
        for position, hidden in zip(positions, states, strict=True):
            found[prompt, position] = hidden
    return found


def _differs(architecture: str, what: str) -> NotInvariantError:
    return NotInvariantError(
        f"batch_invariant: {what} of {architecture} makes other bits of a token in another batch; leave "
        "--batch-invariant out, or use other step kernels"
    )
