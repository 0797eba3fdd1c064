"""The runner feature `hidden-states`: hidden states of sampled tokens, in a file per request. Worker process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry_worker_torch.runner.feature import RunnerContext, RunnerFeature

if TYPE_CHECKING:
    from tenonry.step import NewRow
    from tenonry_worker_torch.runner.step import Step


class HiddenStatesOptions(PluginOptions):
    """Options of the runner feature `hidden-states`."""

    folder: str = Field("hidden-states", min_length=1, description="Folder of the files.")


class HiddenStates(RunnerFeature):
    """Writes the normalised output of the last layer, float32, to FOLDER/HANDLE.f32: a line per sampled token.

    A request that was preempted continues its file behind the tokens that it keeps.
    """

    name = "hidden-states"
    Options = HiddenStatesOptions
    needs_hidden = True

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        parallel: Any = context.model.parallel
        return bool(parallel.link.is_last and parallel.tensor.rank == 0)

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._folder = Path(self.options.folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lines: dict[int, int] = {}  # of the file of each row

    def enter(self, new: NewRow) -> None:
        self._lines[new.row] = new.num_output

    def after(self, step: Step) -> None:
        if step.hidden is None:
            return
        rows, lines = step.accepted()
        hidden = step.hidden.float().cpu().numpy()
        for row in dict.fromkeys(rows.tolist()):
            own = hidden[lines[rows == row]]
            self._write(int(self.context.state.handle[row]), self._lines[row] * own[0].nbytes, own)
            self._lines[row] += len(own)

    def _write(self, handle: int, offset: int, states: np.ndarray[Any, Any]) -> None:
        """Replace what the file has from `offset` on."""
        file = os.open(self._folder / f"{handle:x}.f32", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(file, states.tobytes(), offset)
            os.ftruncate(file, offset + states.nbytes)
        finally:
            os.close(file)
