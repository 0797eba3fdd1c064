"""What is compared before a model serves, and when: before its weights are laid out anew, and after. Worker process.

What it costs depends on the layout. A model that is put together as Llama is, is compared in two ways that add up to
the whole: a short stack, one layer of each kind, against the model's own `eager` attention, with long prompts, chunks
and each way of attending; and all layers with a few tokens, against the probe run, which had to compute them anyway.
Any other model is compared at full depth.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch.fuse.short_stack import short_stack
from tenonry_worker_torch.loading.prompts import numbered_tokens, prompt_lengths, steps_of
from tenonry_worker_torch.loading.self_check import (
    Reference,
    SelfCheck,
    ends_of,
    own_attention,
    reference_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.short_stack import ShortStack
    from tenonry_worker_torch.loading.packed_run import PackedRun
    from tenonry_worker_torch.loading.probe import ProbeResult
    from tenonry_worker_torch.parallel.groups import Parallel

logger = logging.getLogger("tenonry.worker")

PROBE_LENGTHS = (9, 3, 6, 4, 8)  # of the rows that begin as the probe's prompt does


class ModelChecks:
    """The comparisons of one model. All ranks ask for the same ones in the same order.

    `lengths`: of the prompts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        run: PackedRun,
        probed: ProbeResult,
        parallel: Parallel,
        max_model_len: int,
    ) -> None:
        self.model = model
        self.run = run
        self.probed = probed
        self.parallel = parallel
        self.max_model_len = max_model_len
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._short: tuple[ShortStack, SelfCheck] | None = None
        self._at_full_depth: SelfCheck | None = None
        self.lengths = prompt_lengths(model.config.get_text_config(), max_model_len)

    def prepare(self, *, may_be_lean: bool) -> None:
        """Ask the model's own code, while its weights are as they were loaded."""
        stack = self._stack() if may_be_lean else None
        if stack is None:
            self._whole()
        else:
            self._short = (stack, SelfCheck(self.run, self._short_reference(stack)))

    def agrees(self, forward: Forward) -> bool:
        """Whether a forward pass is right. The short stack may say so alone: all layers, and all ways of attending, are
        compared in the end.
        """
        if isinstance(forward, LeanForward) and self._short is not None:
            stack, check = self._short
            one_size = self.run.backend.cache_sizes[:1]
            is_right = check.agrees(forward.shortened(stack.numbers), one_size)
            if self.parallel.layer_mates.all_agree(is_right):
                return True
            self._short = None
            logger.debug("the short stack differs; comparing all layers")
        return self._whole().agrees(forward)

    def require(self, forward: Forward) -> None:
        """Raises ModelError when the model would be served with other logits than its own."""
        architecture = type(self.model).__name__
        if isinstance(forward, LeanForward) and self._short is not None:
            stack, check = self._short
            check.require(forward.shortened(stack.numbers), architecture)
            SelfCheck(self.run, self._probe_reference()).require(
                forward, architecture, cache_sizes=(1,)
            )
        else:
            self._whole().require(forward, architecture)

    def _whole(self) -> SelfCheck:
        """Asked of the model once. No lock: the ranks of one process, as in tests, wait for each other here."""
        if self._at_full_depth is None:
            self.run.release()  # layers with state run as they are, until the next step is planned
            found = reference_of(
                self.model,
                self._vocab_size,
                self.parallel,
                self.max_model_len,
                self.probed,
            )
            self._at_full_depth = SelfCheck(self.run, found)
        return self._at_full_depth

    def _stack(self) -> ShortStack | None:
        if self.parallel.link.num_stages > 1:  # the stages depend on each other's
            return None
        return short_stack(self.model, self.run.layers.values())

    def _short_reference(self, stack: ShortStack) -> Reference:
        found = Reference([], [], steps_of(self.lengths), self.model.dtype)
        tokens = numbered_tokens(sum(self.lengths), self._vocab_size, self.model.device)
        with own_attention(self.model, self.parallel, self.probed), stack.cut():
            for row, prompt in enumerate(tokens.split(self.lengths)):
                found.given.append(prompt)
                found.made.append(stack.hidden(prompt)[ends_of(found.steps, row)])
        return found

    def _probe_reference(self) -> Reference:
        """Beginnings of the probe's prompt, each a row, over all layers. Routers of expert layers may tip at some."""
        given = self.probed.given
        made = self.probed.made
        return Reference(
            [given[:length] for length in PROBE_LENGTHS],
            [made[length - 1 : length] for length in PROBE_LENGTHS],
            [list(PROBE_LENGTHS)],
            self.model.dtype,
            is_one_prompt=True,
        )
