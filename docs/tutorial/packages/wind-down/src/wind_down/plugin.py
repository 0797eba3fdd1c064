"""Logits processor `wind-down`: ends long answers softly, for requests with `extra_args`. Worker process.

`{"wind_down": 64}`: number of tokens, below 2³¹, after which the end becomes more likely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    import torch

    from tenonry.step import NewRow

STRENGTH = 0.2  # added to the logit of the end token, for each token after the start


class WindDown(LogitsProcessor):
    """Raises the first stop token of a request with each token. `start` and `stop`: by row."""

    interface_version = 1
    name: ClassVar[str] = "wind-down"

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self.start = np.zeros(context.max_num_seqs, np.int64)
        self.stop = np.zeros(context.max_num_seqs, np.int64)

    def enter(self, new: NewRow) -> bool:
        start = (new.sampling.extra_args or {}).get("wind_down")
        if type(start) is not int or not 0 <= start < 2**31 or not new.stop_token_ids:
            return False
        self.start[new.row] = start
        self.stop[new.row] = new.stop_token_ids[0]
        return True

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        late = np.maximum(step.num_output - self.start[step.row], 0)
        place = self.context.put(np.arange(len(late)))
        stop = self.context.put(self.stop[step.row])
        logits[place, stop] += self.context.put((STRENGTH * late).astype(np.float32))
