"""Kernels for all layers of a fused model in bfloat16 in one call: for decoding steps, steps with prompts, and
multi-token steps. Worker process.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from tenonry_torch_base.kernel_parts import PromptParts, StackParts
from tenonry_worker_torch.fuse.layer import KERNEL_TOKENS
from tenonry_worker_torch_cpu.kernels.paged import WholeLayer, WholeStack, stack_candidates
from tenonry_worker_torch_cpu.kernels.prompts import WholePrompts, prompt_candidates
from tenonry_worker_torch_cpu.kernels.rounds import WholeRounds, round_candidates, round_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.fuse.decoder import LeanForward
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser

STACK = "stack"
PROMPTS = "prompts"
ROUNDS = "rounds"
SOME_LAYERS = 3  # of a trial of those that decode
PROMPT_LAYERS = (
    1  # of a trial: they round elsewhere than our operations, and more so the more there are
)
SOME_ROWS = 2


class StackKernels:
    """Assigns the chosen kernels."""

    def __init__(self, chooser: KernelChooser, changes: Changes) -> None:
        self._chooser = chooser
        self._changes = changes

    def give(
        self,
        forward: LeanForward,
        attends: Mapping[str, PagedKernel],
        chunks: Mapping[str, ChunkKernel],
    ) -> None:
        """Assign kernels to a model whose layers have a kernel each, and all the same rotation and block tables.

        `attends`, `chunks`: the kernels of its layers' attention, by their names.
        """
        whole = [layer.kernel for layer in forward.layers if isinstance(layer.kernel, WholeLayer)]
        has_all = len(whole) == len(forward.layers) > 1
        if not has_all or len(forward.ropes) > 1:
            return
        (rope,) = forward.ropes.values()
        self._give_stack(forward, whole, attends, rope)
        if len(chunks) == len(whole) and all(each.most == KERNEL_TOKENS for each in whole):
            self._give_prompts(forward, whole, attends, chunks, rope)

    def give_rounds(self, forward: LeanForward, attends: Mapping[str, PagedKernel]) -> None:
        """Assign the kernel for several tokens; after `give`, and after the decision about the head's kernel."""
        if forward.stack is None:
            return
        whole = [layer.kernel for layer in forward.layers if isinstance(layer.kernel, WholeLayer)]
        (rope,) = forward.ropes.values()
        parts = round_parts(forward, [each.kernel for each in whole], rope)
        if parts is None:
            return
        made = self._chooser.make(parts)
        some = self._chooser.make(dataclasses.replace(parts, layers=parts.layers[:1]))
        if made is None or some is None:
            return
        attend = attends[whole[0].layer.spec.name]
        compared = partial(round_candidates, forward, some, whole[0].kernel, attend, rope)
        if self._chooser.is_better((ROUNDS,), compared):
            layers = tuple(each.layer for each in whole)
            most = min(forward.end.head.most, *(each.most for each in whole))  # type: ignore[union-attr] - has parts
            self._changes.set(forward, "rounds", WholeRounds(layers, made, most))

    def _give_stack(
        self,
        forward: LeanForward,
        whole: list[WholeLayer],
        attends: Mapping[str, PagedKernel],
        rope: RopeTable,
    ) -> None:
        singly = [each.kernel for each in whole]
        made = self._chooser.make(StackParts(singly))
        some = self._chooser.make(StackParts(singly[:SOME_LAYERS]))
        if made is None or some is None:
            return
        compared = partial(
            stack_candidates,
            forward.layers[:SOME_LAYERS],
            (singly[:SOME_LAYERS], some),
            attends[whole[0].layer.spec.name],
            rope,
            SOME_ROWS,
        )
        if self._chooser.is_better((STACK,), compared):
            layers = tuple(each.layer for each in whole)
            most = min(each.most for each in whole)
            self._changes.set(forward, "stack", WholeStack(layers, made, most))

    def _give_prompts(
        self,
        forward: LeanForward,
        whole: list[WholeLayer],
        attends: Mapping[str, PagedKernel],
        chunks: Mapping[str, ChunkKernel],
        rope: RopeTable,
    ) -> None:
        """Tried only if the kernels of layers are fast for all numbers of rows of their trials."""
        singly = [each.kernel for each in whole]
        made = self._chooser.make(PromptParts(singly))
        some = self._chooser.make(PromptParts(singly[:PROMPT_LAYERS]))
        if made is None or some is None:
            return
        compared = partial(
            prompt_candidates, forward.layers[:PROMPT_LAYERS], some, attends, chunks, rope
        )
        if self._chooser.is_better((PROMPTS,), compared):
            layers = tuple(each.layer for each in whole)
            self._changes.set(forward, "prompts", WholePrompts(layers, made))
