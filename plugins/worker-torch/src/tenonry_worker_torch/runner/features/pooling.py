"""Vectors and scores of prompts, for rows of a model that pools. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry.sampling_params import PoolingParams
from tenonry.step import RowFailure
from tenonry_worker_torch.runner.feature import RunnerFeature, Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_worker_torch.pooling.pooler import Pooler
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step

PLAIN = PoolingParams()


class Pooling(RunnerFeature):
    """Finishes the vector of each prompt as requested. A row with a non-finite vector fails."""

    name: ClassVar[str] = "pooling"
    split: ClassVar[Split] = Split.BETWEEN_ROWS  # prompts are computed as a whole

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.pooler is not None

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._params: dict[int, PoolingParams] = {}

    @property
    def pooler(self) -> Pooler:
        """Pooler of the current model."""
        return self.context.model.pooler  # type: ignore[return-value] - see `is_active`

    def enter(self, new: NewRow) -> None:
        self._params[new.row] = new.sampling.pooling or PLAIN

    def leave(self, rows: NDArray[np.int32]) -> None:
        for row in rows.tolist():
            self._params.pop(row, None)

    def prepare(self, step: Step) -> None:
        starts = [self._params[row].pair_start for row in _sampling(step)]
        step.pair_starts = np.array(starts, np.int64)

    def before_sampling(self, step: Step) -> None:
        rows = _sampling(step)
        forms: dict[tuple[bool | None, int | None], list[int]] = {}
        for place, row in enumerate(rows):
            params = self._params[row]
            forms.setdefault((params.normalize, params.dimensions), []).append(place)
        step.pooled = {}
        for form, places in forms.items():
            vectors = self.pooler.finished(step.logits[places], *form).cpu().numpy()
            for place, vector in zip(places, vectors, strict=True):
                if np.isfinite(vector).all():
                    step.pooled[rows[place]] = vector
                else:
                    self.context.failures.set(rows[place], RowFailure.NUMERICAL)


def _sampling(step: Step) -> list[int]:
    """The sampling rows of a step."""
    rows: list[int] = step.inputs.row[step.inputs.samples].tolist()
    return rows
