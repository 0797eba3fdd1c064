"""The self check at start: prompts that share a batch must yield the logits of the model's own code for each of them
alone. Each pipeline stage checks its own layers, with the hidden states that it received for the prompts. Worker
process.

The reference is the model as transformers runs it: its own `eager` attention, masks and positions, no cache. Ours goes
the way of serving: a prompt longer than the model's window in two chunks and two decoded tokens, together with others,
and only the last positions reach the output layer; once for each attention algorithm that the backend chooses by the
size of its cache. It detects layers that mix tokens without attention, unknown calls of attention, and any error in the
transformations after loading.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.attention.layer import INTERFACE_NAME
from tenonry_torch_base.text_part import set_attention
from tenonry_worker_torch.loading.probe import named_failure, run_alone
from tenonry_worker_torch.loading.prompts import numbered_tokens, prompt_lengths, steps_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.loading.packed_run import PackedRun
    from tenonry_worker_torch.loading.probe import ProbeResult

# Tolerance for rounding (relative L2 per position). Mixing two prompts gives errors near 1; deep models in
# bfloat16 were seen at a few percent. In 16 bits the median over a prompt's positions is compared, since routers of
# expert layers may tip, and one prompt of several may be rounded worse than the others.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
ONE_PROMPT = 2.5  # a single prompt's allowance in 16 bits, in tolerances


@dataclass(slots=True)
class Reference:
    """Reference output of the model's own code for each prompt: `given`, the inputs of this stage, tokens or hidden
    states [length, hidden]; `made`, its logits, or the hidden states that it sends on, at the positions that steps end
    with.

    `keeps_all`: at all positions.
    """

    given: list[torch.Tensor]
    made: list[torch.Tensor]
    steps: list[list[int]]
    dtype: torch.dtype
    keeps_all: bool = False


def reference_of(
    model: PreTrainedModel,
    vocab_size: int,
    parallel: Parallel,
    max_model_len: int,
    probed: ProbeResult,
) -> Reference:
    """Run the prompts one at a time through the model's own attention. All stages do this together."""
    link = parallel.link
    lengths = prompt_lengths(model.config.get_text_config(), max_model_len)
    found = Reference([], [], steps_of(lengths), model.dtype)
    tokens = numbered_tokens(sum(lengths), vocab_size, model.device)
    with own_attention(model, parallel, probed):
        for row, prompt in enumerate(tokens.split(lengths)):
            given = link.inputs(prompt)
            with named_failure(model, parallel.tensor.size):
                made = run_alone(model, given)
            if not link.is_last:
                link.send(made)
            ends = ends_of(found.steps, row)
            found.given.append(given)
            found.made.append(made[ends])
    return found


@contextmanager
def own_attention(
    model: PreTrainedModel, parallel: Parallel, probed: ProbeResult
) -> Iterator[None]:
    """Inside, the model attends with its own `eager` attention."""
    if parallel.tensor.size > 1:
        _count_groups_anew(probed)
    set_attention(model, "eager")
    try:
        yield
    finally:
        set_attention(model, INTERFACE_NAME)


def _count_groups_anew(probed: ProbeResult) -> None:
    """Correct the attribute by which `eager` attention repeats KV heads: sharded layers inherit the whole model's
    value, which is wrong if several ranks hold the same KV head.
    """
    for module, spec, heads in zip(probed.modules, probed.specs, probed.rank_heads, strict=True):
        if heads is None and hasattr(module, "num_key_value_groups"):
            module.num_key_value_groups = spec.group_size  # type: ignore[assignment]


def ends_of(steps: list[list[int]], row: int) -> list[int]:
    """The positions that the steps of one prompt end with."""
    ends = []
    done = 0
    for counts in steps:
        done += counts[row]
        if counts[row]:
            ends.append(done - 1)
    return ends


def relative_errors(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """‖got − wanted‖ / ‖wanted‖ per position, for [positions, vocabulary]; NaN counts as infinite."""
    wanted = wanted.float()
    difference = (got.float() - wanted).norm(dim=-1)
    error = difference / wanted.norm(dim=-1).clamp_min(1e-6)
    return torch.nan_to_num(error, nan=float("inf"))


def failure(architecture: str, what: str, error: float, allowed: float) -> ModelError:
    """Error for a model that would compute wrong answers."""
    return ModelError(
        f"{architecture} fails the self check of worker 'torch': {what} (relative error {error:.3g}, allowed "
        f"{allowed:g}), so answers would be wrong; --skip-model-check runs it anyway"
    )


class SelfCheck:
    """Compares a forward pass with the reference. `first`: computes the first step instead of the compared pass.

    `allowed`: tolerance beyond the rounding of the data type, for quantised weights.
    """

    def __init__(self, run: PackedRun, reference: Reference, first: Forward | None = None) -> None:
        self.run = run
        self.reference = reference
        self.first = first
        self.allowed = 0.0

    def errors(self, forward: Forward, cache_sizes: Sequence[int] = ()) -> list[float]:
        """Error of each prompt: the maximum over positions in float32, the median in 16 bits.

        `cache_sizes`: by default those of the backend.
        """
        sizes = cache_sizes or self.run.backend.cache_sizes
        runs = [self._errors(forward, size) for size in sizes]
        return [max(of_prompt) for of_prompt in zip(*runs, strict=True)]

    def _errors(self, forward: Forward, cache_size: int) -> list[float]:
        reference = self.reference
        found = self.run.steps(
            forward,
            reference.given,
            reference.steps,
            cache_size=cache_size,
            keeps_all=reference.keeps_all,
            first=self.first,
        )
        return [
            self._error(torch.stack(got), wanted)
            for got, wanted in zip(found, reference.made, strict=True)
        ]

    def _error(self, got: torch.Tensor, wanted: torch.Tensor) -> float:
        errors = relative_errors(got, wanted)
        return float(errors.max() if self._is_exact else errors.median())

    @property
    def _is_exact(self) -> bool:
        return self.reference.dtype == torch.float32 and not self.allowed

    def agrees(self, forward: Forward, cache_sizes: Sequence[int] = ()) -> bool:
        """Return True if all prompts are within the tolerance of their data type."""
        return self._worst(self.errors(forward, cache_sizes)) is None

    @property
    def tolerance(self) -> float:
        """The largest relative error that is taken for rounding."""
        return max(TOLERANCE[self.reference.dtype], self.allowed)

    def _worst(self, errors: list[float]) -> int | None:
        """The prompt with the largest error, if that is no rounding."""
        worst = max(range(len(errors)), key=errors.__getitem__)
        if errors[worst] <= self.tolerance:
            return None
        if self._is_exact or errors[worst] > ONE_PROMPT * self.tolerance:
            return worst
        middle = sorted(errors)[len(errors) // 2]
        return None if middle <= self.tolerance else worst

    def require(self, forward: Forward, architecture: str, cache_sizes: Sequence[int] = ()) -> None:
        """Raise ModelError naming the architecture when the logits differ from those of the prompts alone."""
        errors = self.errors(forward, cache_sizes)
        worst = self._worst(errors)
        if worst is not None:
            what = f"prompt {worst + 1} of {len(errors)} gives other logits in a packed batch than on its own"
            raise failure(architecture, what, errors[worst], self.tolerance)

    def require_same(
        self, got: torch.Tensor, wanted: torch.Tensor, architecture: str, what: str
    ) -> None:
        """Raise ModelError that names `what` when [positions, elements] differ."""
        error = self._error(got, wanted)
        if error > self.tolerance:
            raise failure(architecture, what, error, self.tolerance)
