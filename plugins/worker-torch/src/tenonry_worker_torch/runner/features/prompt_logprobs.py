"""Log-probabilities of prompt tokens, for rows that request them. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry_torch_base.results import PromptPart
from tenonry_torch_base.sampler.logprobs import prompt_logprobs_of
from tenonry_worker_torch.runner.feature import RunnerFeature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step


class PromptLogprobs(RunnerFeature):
    """Requests logits of the prompt tokens of a pass whose successor is a prompt token.

    All ranks of a tensor group compute these logits; the first one, whose results are read, evaluates them.
    """

    name: ClassVar[str] = "prompt_logprobs"
    sees_decodes: ClassVar[bool] = False

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.parallel.link.is_last

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._counts: dict[int, int] = {}  # row → log-probabilities per token besides its own
        self._vocab_size = context.model.vocab_size
        self._is_read = context.model.parallel.tensor.rank == 0

    def enter(self, new: NewRow) -> None:
        wanted = new.sampling.prompt_logprobs
        if wanted is None:
            self._counts.pop(new.row, None)
        else:
            self._counts[new.row] = min(wanted, self._vocab_size)

    def leave(self, rows: NDArray[np.int32]) -> None:
        if self._counts:
            for row in rows.tolist():
                self._counts.pop(row, None)

    def prepare(self, step: Step) -> None:
        if not self._counts:
            return
        inputs = step.inputs
        for place, row in enumerate(inputs.row.tolist()):
            if row not in self._counts:
                continue
            begin = int(inputs.start[place])
            last_prompt = int(self.context.state.num_prompt[row]) - 1
            count = min(int(inputs.num_tokens[place]), last_prompt - begin)
            if count > 0:
                first = int(inputs.query_start_loc[place])
                step.prompt_tokens.append((place, np.arange(first, first + count, dtype=np.int64)))

    def after(self, step: Step) -> None:
        if not step.prompt_tokens or not self._is_read:
            return
        begin = 0
        for place, tokens in step.prompt_tokens:
            row = int(step.inputs.row[place])
            start = int(step.inputs.start[place]) + 1
            end = begin + len(tokens)
            chosen = self.context.history.tokens[row, start : start + len(tokens)].long()
            logits = step.prompt_logits[begin:end]
            logprobs = prompt_logprobs_of(logits, chosen, self._counts[row])
            step.prompts.append(PromptPart(row, start, logprobs))
            begin = end
