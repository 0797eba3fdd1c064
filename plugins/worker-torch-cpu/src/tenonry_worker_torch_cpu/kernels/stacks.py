"""Kernels for all layers of a fused model in bfloat16 in one call: for decoding steps, steps with prompts, and
multi-token steps. Worker process.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from tenonry_torch_base.kernel_parts import PromptParts, StackParts
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch_cpu.kernels.candidate import Candidate, Trial, setting
from tenonry_worker_torch_cpu.kernels.paged import WholeLayer, WholeStack, stack_candidates
from tenonry_worker_torch_cpu.kernels.prompts import WholePrompts, prompt_candidates
from tenonry_worker_torch_cpu.kernels.rounds import WholeRounds, round_candidates, round_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel
    from tenonry_worker_torch.fuse.decoder import FusedForward

STACK = "stack"
PROMPTS = "prompts"
ROUNDS = "rounds"
SOME_LAYERS = 3  # of a decode trial
PROMPT_LAYERS = 1  # of a trial: rounding differs from built-in operations, increasingly with the number of layers
SOME_ROWS = 2


def stacks(
    forward: FusedForward, attends: Mapping[str, PagedKernel], chunks: Mapping[str, ChunkKernel]
) -> Iterator[Candidate]:
    """Candidates of a model whose layers have a kernel each, and all the same rotation and block tables.

    `attends`, `chunks`: the kernels of its layers' attention, by their names.
    """
    whole = whole_layers(forward)
    has_all = len(whole) == len(forward.layers) > 1
    if not has_all or len(forward.ropes) > 1:
        return
    (rope,) = forward.ropes.values()
    singly = [each.kernel for each in whole]
    layers = tuple(each.layer for each in whole)
    attend = attends[layers[0].spec.name]
    some = forward.layers[:SOME_LAYERS]
    most = min(each.most for each in whole)
    yield Candidate(
        kind=(STACK,),
        parts=StackParts(singly),
        sample=StackParts(singly[:SOME_LAYERS]),
        trial=Trial.ONCE,
        compared=lambda kernel: partial(
            stack_candidates, some, (singly[:SOME_LAYERS], kernel), attend, rope, SOME_ROWS
        ),
        assign=setting(forward, "stack", lambda kernel: WholeStack(layers, kernel, most)),
        reports_refusal=False,
    )
    # Tried only if the kernels of layers are fast for all numbers of rows of their trials.
    if len(chunks) != len(whole) or most != KERNEL_TOKENS:
        return
    yield Candidate(
        kind=(PROMPTS,),
        parts=PromptParts(singly),
        sample=PromptParts(singly[:PROMPT_LAYERS]),
        trial=Trial.ONCE,
        compared=lambda kernel: partial(
            prompt_candidates, forward.layers[:PROMPT_LAYERS], kernel, attends, chunks, rope
        ),
        assign=setting(forward, "prompts", partial(WholePrompts, layers)),
        reports_refusal=False,
    )


def rounds(forward: FusedForward, attends: Mapping[str, PagedKernel]) -> Iterator[Candidate]:
    """Candidate for several tokens; follows `stacks`, and the decision about the head's kernel."""
    if forward.stack is None:
        return
    whole = whole_layers(forward)
    (rope,) = forward.ropes.values()
    parts = round_parts(forward, [each.kernel for each in whole], rope)
    if parts is None:
        return
    attend = attends[whole[0].layer.spec.name]
    layers = tuple(each.layer for each in whole)
    most = min(forward.end.head.most, *(each.most for each in whole))  # type: ignore[union-attr] - has parts
    yield Candidate(
        kind=(ROUNDS,),
        parts=parts,
        sample=dataclasses.replace(parts, layers=parts.layers[:1]),
        trial=Trial.ONCE,
        compared=lambda kernel: partial(
            round_candidates, forward, kernel, whole[0].kernel, attend, rope
        ),
        assign=setting(forward, "rounds", lambda kernel: WholeRounds(layers, kernel, most)),
        reports_refusal=False,
    )


def whole_layers(forward: FusedForward) -> list[WholeLayer]:
    """Kernels of whole layers, in order."""
    return [layer.kernel for layer in forward.layers if isinstance(layer.kernel, WholeLayer)]
