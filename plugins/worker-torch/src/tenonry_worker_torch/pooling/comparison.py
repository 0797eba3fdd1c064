"""Comparisons of a model that pools with itself: padded batches and passes over it against single prompts. Worker
process, at start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.finite import require_finite

if TYPE_CHECKING:
    from tenonry_worker_torch.pooling.pooler import Pooler

LENGTHS = (7, 3, 1)
# Relative to the greatest number: rounding, where padding changes the order of sums.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.1}


class PromptComparison:
    """Random prompts and their vectors as the unchanged model computes them, one prompt at a time."""

    def __init__(self, pooler: Pooler, *, vocab_size: int, width: int, longest: int) -> None:
        """Set up the comparison: `width` of the vectors, `longest` prompt. Raises ModelError, also for errors of the
        model's own code.
        """
        self._pooler = pooler
        generator = torch.Generator().manual_seed(0)
        self._lengths = torch.tensor([min(length, longest) for length in LENGTHS])
        shape = (len(self._lengths), int(self._lengths[0]))
        self._prompts = torch.randint(vocab_size, shape, generator=generator)
        self._expected = self._reference(width)

    def _reference(self, width: int) -> torch.Tensor:
        """Vectors of the prompts. Batches are turned off where their results differ."""
        pooler = self._pooler
        name = type(pooler.module).__name__
        try:
            alone = self._alone()
            again = self._alone()
            together = alone
            if pooler.batches:
                together = pooler.run(self._prompts, self._lengths, torch.zeros_like(self._lengths))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # any class, since it is the model's code
            raise ModelError(
                f"{name} cannot run on worker 'pooling': its forward fails with {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
        if alone.shape != (len(self._prompts), width):
            raise ModelError(
                f"{name} cannot run on worker 'pooling': it gives {list(alone.shape)} numbers for {len(alone)} "
                f"prompts, its config.json says {width} each"
            )
        require_finite(pooler.module, alone)
        if not torch.equal(alone, again):
            raise ModelError(
                f"{name} cannot run on worker 'pooling': its output for random tokens is not the same twice; try "
                "--dtype float32"
            )
        pooler.batches = pooler.batches and self._is_close(together, alone)
        return alone

    def prepare(self, *, may_fuse: bool) -> None:
        """Nothing: the model's own code ran in the constructor."""

    def run_once(self, forward: object) -> None:
        """Run the prompts, to detect exceptions of the model's code."""
        self._alone()

    def agrees(self, forward: object) -> bool:
        """Return True if the model still computes the same vectors; errors of the model's own code are raised."""
        return self._is_close(self._alone(), self._expected)

    still_agrees = agrees

    def _alone(self) -> torch.Tensor:
        """Run `Pooler.run` with one prompt at a time."""
        rows = [
            self._pooler.run(prompt[None, :length], length[None], torch.zeros(1, dtype=torch.long))
            for prompt, length in zip(self._prompts, self._lengths, strict=True)
        ]
        return torch.cat(rows)

    def _is_close(self, found: torch.Tensor, expected: torch.Tensor) -> bool:
        scale = expected.abs().max().clamp(min=1e-6)
        dtype = self._pooler.module.dtype
        return bool((found - expected).abs().max() / scale <= TOLERANCES[dtype])
