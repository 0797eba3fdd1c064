"""Attention alone, in all layers: arguments recorded in the probe run, passed to its cache in pieces. Worker process.

No weight takes part, so all layers of a deep model cost little. It verifies that each layer uses its own place, by the
block table of its own group and its own spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_worker_torch.loading.self_check import relative_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.attention.layer import Attended, AttentionLayer, StepPlan
    from tenonry_worker_torch.forward import ForwardPlans
    from tenonry_worker_torch.loading.packed_run import PackedRun

# Of two rows that begin as the probe's prompt does: chunks of one, and single tokens of the other. Two of these, since
# what is held of a row that decodes is copied at its first token, and read at the second.
STEPS = [[4, 1], [5, 1]]


class LayerError(NamedTuple):
    """The relative error of one layer, in the worst step of a row."""

    name: str
    error: float


class Replay:
    """A Forward (see `tenonry_worker_torch.forward`) without weights: token i of a row is token i of the probe's
    prompt, and its output is the concatenated attention output of all layers.
    """

    can_prune = False

    def __init__(
        self, layers: Mapping[str, AttentionLayer], attended: Mapping[str, Attended], step: StepPlan
    ) -> None:
        """`attended`: of each layer, by its name."""
        self.step = step
        self.calls = [
            (layer, attended[name].by_heads(layer.rank_heads)) for name, layer in layers.items()
        ]

    def __call__(
        self,
        _inputs: torch.Tensor,
        positions: torch.Tensor,
        _keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        """[T, elements of all layers' heads]."""
        self.step.plan = plans.full
        made = [
            layer(given.query[positions], given.key[positions], given.value[positions])
            for layer, given in self.calls
        ]
        return torch.cat([out.flatten(1) for out in made], 1)

    def worst(self, run: PackedRun, prompt: torch.Tensor, cache_size: int) -> LayerError:
        """Return the layer with the largest difference from the probe run."""
        lengths = [sum(counts) for counts in zip(*STEPS, strict=True)]
        found = run.steps(
            self,
            [prompt[:length] for length in lengths],
            STEPS,
            cache_size=cache_size,
            keeps_all=True,
        )
        of_rows = [self._errors(torch.stack(made), row) for row, made in enumerate(found)]
        errors = torch.stack(of_rows).amax(0)
        number = int(errors.argmax())
        return LayerError(self.calls[number][0].spec.name, float(errors[number]))

    def _errors(self, made: torch.Tensor, row: int) -> torch.Tensor:
        """Error of each layer in the row's worst step: the maximum over positions in float32, else the median."""
        counts = [step[row] for step in STEPS if step[row]]
        is_exact = made.dtype == torch.float32
        widths = [given.out[0].numel() for _, given in self.calls]
        errors = torch.stack(
            [
                relative_errors(got, given.out[: len(got)].flatten(1))
                for (_, given), got in zip(self.calls, made.split(widths, 1), strict=True)
            ]
        )
        of_steps = [
            step.amax(1) if is_exact else step.median(1).values for step in errors.split(counts, 1)
        ]
        return torch.stack(of_steps).amax(0)
