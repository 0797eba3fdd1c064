"""Comparisons of a model before serving: before the layout of its weights changes, and after. Worker process.

The cost depends on the layout. A model with the structure of Llama is compared in parts that add up to the whole, and
each part is run once:

- a short stack, one layer of each kind, against the model's own `eager` attention, with long prompts, chunks and
  decoded tokens: whatever is wrong with how layers of a kind are called, rotated, normalised, masked or scaled. Each
  way of attending is compared once, since how weights lie in memory does not change how K/V are kept: the first one
  before weights are laid out anew, while the model may still run its own code, the others as they will serve;
- attention of all layers without their weights, against the probe run (`Replay`): a layer that shares another one's
  place in the cache, is in another group, or has settings that are not its own;
- all layers and the head as they will serve, with a few tokens on top of that cache, against the probe run, which had
  to read all weights anyway: a layer that has another one's weights, norms or attention. Only such a pass finds these,
  and one is enough: every position is compared before the head, and the head, which works on each alone, once.

Any other model is compared at full depth.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.decoder import FusedForward, FusedHead
from tenonry_worker_torch.fuse.short_stack import short_stack
from tenonry_worker_torch.loading.prompts import numbered_tokens, prompt_lengths, steps_of
from tenonry_worker_torch.loading.replay import Replay
from tenonry_worker_torch.loading.self_check import (
    ONE_PROMPT,
    TOLERANCE,
    Reference,
    SelfCheck,
    ends_of,
    failure,
    own_attention,
    reference_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.short_stack import ShortStack
    from tenonry_worker_torch.loading.packed_run import PackedRun
    from tenonry_worker_torch.loading.probe import ProbeResult

logger = logging.getLogger("tenonry.worker")

RUN_TOKENS = 3
REPLAYED = 3  # tokens of the probe's prompt that are in the cache before all layers run


class ModelChecks:
    """The comparisons of one model. All ranks run the same ones in the same order.

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
        self._allowed = 0.0
        self.lengths = prompt_lengths(model.config.get_text_config(), max_model_len)

    def prepare(self, *, may_fuse: bool) -> None:
        """Run the model's own code, while its weights are as loaded."""
        stack = self._stack() if may_fuse else None
        if stack is None:
            self._whole()
        else:
            self._short = (stack, SelfCheck(self.run, self._short_reference(stack)))

    def allow(self, tolerance: float) -> None:
        """Increase the tolerance for rounding beyond that of the data type from now on."""
        self._allowed = tolerance
        for check in (self._short and self._short[1], self._at_full_depth):
            if check is not None:
                check.allowed = tolerance

    def run_once(self, forward: Forward) -> None:
        """Run a short prompt, to detect exceptions of the model's code."""
        prompt = numbered_tokens(RUN_TOKENS, self._vocab_size, self.model.device)
        self.run.last_logits(forward, [prompt])

    def agrees(self, forward: Forward) -> bool:
        """Return True if a forward pass is correct. The short stack is sufficient here: all layers, and the other
        attention algorithms, are compared in the end.
        """
        if isinstance(forward, FusedForward) and self._short is not None:
            stack, check = self._short
            one_size = self.run.backend.cache_sizes[:1]
            is_right = check.agrees(forward.shortened(stack.numbers), one_size)
            if self.parallel.layer_mates.all_agree(is_right):
                return True
            self._short = None
            logger.debug("the short stack differs; comparing all layers")
        return self._whole().agrees(forward)

    def still_agrees(self, forward: Forward) -> bool:
        """Repeat a successful `agrees`, when the model's own code may have lost its weights."""
        if not isinstance(forward, FusedForward) or self._short is None:
            return self._whole().agrees(forward)  # computed before
        stack, check = self._short
        one_size = self.run.backend.cache_sizes[:1]
        is_right = check.agrees(forward.shortened(stack.numbers), one_size)
        return self.parallel.layer_mates.all_agree(is_right)

    def require(self, forward: Forward) -> None:
        """Raises ModelError when the model would be served with other logits than its own."""
        architecture = type(self.model).__name__
        if isinstance(forward, FusedForward) and self._short is not None:
            stack, check = self._short
            sizes = self.run.backend.cache_sizes
            shortened = forward.shortened(stack.numbers)
            check.require(shortened, architecture, cache_sizes=sizes[1:] or sizes)
            self._require_all_layers(forward, architecture)
        else:
            self._whole().require(forward, architecture)

    def require_rounded(self, forward: Forward, tolerance: float) -> None:
        """As `require`, for K and V rounded from now on, which changes logits by at most this tolerance."""
        architecture = type(self.model).__name__
        self.allow(self._allowed + tolerance)
        if isinstance(forward, FusedForward) and self._short is not None:
            stack, check = self._short
            check.require(forward.shortened(stack.numbers), architecture)
            self._replay(forward, architecture, tolerance)
        else:
            self._whole().require(forward, architecture)

    def _require_all_layers(self, forward: FusedForward, architecture: str) -> None:
        """Every layer and the head, against the probe run."""
        probed = self.probed
        hidden: torch.Tensor = probed.end[0][0]  # [length, hidden], of the text model
        replay = self._replay(forward, architecture)
        begin = 0
        if replay is not None and probed.states is None:  # states of layers were not kept
            begin = REPLAYED
        length = len(probed.given)
        reference = Reference(
            [probed.given],
            [hidden[begin:]],
            [[count] for count in (begin, length - begin) if count],
            self.model.dtype,
            keeps_all=True,
        )
        check = SelfCheck(self.run, reference, replay if begin else None)
        check.allowed = self._allowed
        numbers = list(range(len(forward.layers)))
        check.require(forward.shortened(numbers), architecture, cache_sizes=(1,))
        if isinstance(forward.end, FusedHead):
            with torch.inference_mode():
                logits = forward.end.logits(hidden[-1:])
            what = "its head makes other logits of the same hidden states"
            check.require_same(logits, probed.made[-1:], architecture, what)

    def _replay(
        self, forward: FusedForward, architecture: str, tolerance: float = 0.0
    ) -> Replay | None:
        """Return attention of all layers, compared with the probe run; None if that did not cover all of it.

        `tolerance`: in addition to the rounding of the data type, if K and V are rounded.
        """
        layers = self.run.layers
        attended = self.probed.attended
        if not layers or layers.keys() != attended.keys():
            return None
        replay = Replay(layers, attended, forward.step)
        prompt = self.probed.given
        worst = replay.worst(self.run, prompt, self.run.backend.cache_sizes[-1])
        allowed = ONE_PROMPT * max(TOLERANCE[self.model.dtype], tolerance)
        if not self.parallel.layer_mates.all_agree(worst.error <= allowed):
            raise failure(
                architecture,
                f"{worst.name} attends differently from its cache than to a whole prompt",
                worst.error,
                allowed,
            )
        return replay

    def _whole(self) -> SelfCheck:
        """Reference of the whole model, computed once. No lock: the ranks of one process wait for each other here."""
        if self._at_full_depth is None:
            self.run.release()  # stateful layers run unmodified until the next step is planned
            found = reference_of(
                self.model, self._vocab_size, self.parallel, self.max_model_len, self.probed
            )
            self._at_full_depth = SelfCheck(self.run, found)
            self._at_full_depth.allowed = self._allowed
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
