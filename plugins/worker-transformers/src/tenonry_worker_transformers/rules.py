"""The rules of a model's generation config, as a logits processor: forced and suppressed tokens, n-grams that must not
repeat, lengths. `generate` applies them to every request; here those of encoder-decoder models are. Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    import torch

    from tenonry.step import NewRow
    from tenonry_worker_transformers.sequences import Sequences


class GenerationRules(LogitsProcessor):
    """Each row has the processors that `generate` made for its request. `is_needed`: whether the model has any rule."""

    name = "generation_config"

    def __init__(self, context: ProcessorContext, sequences: Sequences, *, is_needed: bool) -> None:
        super().__init__(context)
        self._sequences = sequences
        self._is_needed = is_needed

    def enter(self, new: NewRow) -> bool:
        return self._is_needed

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        for line, row in enumerate(step.row.tolist()):
            processors = self._sequences.processors_of(row)
            if processors:
                scores = logits[line : line + 1]
                logits[line] = processors(self._sequences.ids_of(row), scores)[0]
