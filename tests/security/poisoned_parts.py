"""A worker and a scheduler whose free rows are full of the remains of other requests. Engine process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from row_columns import poison

from tenonry.step import NO_ROWS, ModelRunnerOutput, SchedulerOutput
from tenonry_scheduler_batching.scheduler import BatchingScheduler
from tenonry_worker_torch.worker import TorchWorker

if TYPE_CHECKING:
    from tenonry.step import StepFuture


class Switch:
    """Free rows are poisoned while there is an `rng`. `depth`: steps in flight. `names`: columns found so far."""

    def __init__(self) -> None:
        self.rng: np.random.Generator | None = None
        self.depth = 1
        self.names: set[str] = set()

    def poison(self, root: Any, num_rows: int, free: list[int]) -> None:
        if self.rng is not None:
            self.names |= poison(root, num_rows, free, self.rng)


SWITCH = Switch()


class LateFuture:
    """A result that is not done before it is read, so that more steps are launched first."""

    def __init__(self, output: ModelRunnerOutput) -> None:
        self._output = output

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        return self._output


class PoisonedWorker(TorchWorker):
    """Poisons rows as soon as they are free, and blocks and states that a step assigns to a row."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.used: set[int] = set()

    @property
    def steps_in_flight(self) -> int:
        return SWITCH.depth

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        rng = SWITCH.rng
        if rng is not None:
            output = self._poisoned(output, leaves_first=bool(rng.random() < 0.7))
        made = super().execute_model(output)
        assert isinstance(made, ModelRunnerOutput)
        return made if SWITCH.depth == 1 else LateFuture(made)

    def _poisoned(self, output: SchedulerOutput, *, leaves_first: bool) -> SchedulerOutput:
        """`leaves_first`: rows leave in a step of their own, so that rows reused in the same step are poisoned too."""
        self.used.difference_update(output.gone.tolist())
        if leaves_first and len(output.gone):
            super().execute_model(SchedulerOutput(step_id=output.step_id, gone=output.gone))
            output = msgspec.structs.replace(output, gone=NO_ROWS)
            self._poison_rows()
        elif not len(output.gone):
            self._poison_rows()
        self.used.update(new.row for new in output.new)
        self._poison_blocks(output)
        return output

    def _poison_rows(self) -> None:
        config = self.context.config
        num_rows = config.max_num_seqs
        free = [row for row in range(num_rows) if row not in self.used]
        SWITCH.poison(self.runner, num_rows, free)
        SWITCH.poison(self.model.backend, num_rows, free)
        states = self.model.states
        for mixer in states.mixers if states is not None else ():
            for pool in mixer.pools.values():
                pool[free] = float("nan")

    def _poison_blocks(self, output: SchedulerOutput) -> None:
        """Blocks that a row has not computed yet hold NaN."""
        size = self.runner.state.block_size
        ids = [new.block_ids[0][-(-new.num_computed // size) :] for new in output.new]
        ids.append(output.new_block_id[output.new_block_group == 0])
        blocks = np.concatenate(ids).astype(np.int64)
        for cache in self.runner.memory.kv_caches:
            for tensor in (cache.key, cache.value):
                if tensor.is_floating_point():
                    tensor[blocks] = float("nan")


class PoisonedScheduler(BatchingScheduler):
    """Poisons the columns of free rows before each step, and before each result."""

    def schedule(self) -> SchedulerOutput:
        self._poison()
        return super().schedule()

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> Any:
        self._poison()
        return super().update_from_output(output, result)

    def _poison(self) -> None:
        requests = self.rows.requests
        free = [row for row, each in enumerate(requests) if each is None or each.row != row]
        assert not [row for row in free if requests[row]]
        SWITCH.poison(self, self.rows.size, free)
