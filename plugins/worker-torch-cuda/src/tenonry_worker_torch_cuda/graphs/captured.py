"""Steps in which all rows decode, each replayed as one graph. Worker process.

A graph is recorded when a step first needs it, over inputs in memory that stays, and is compared once with the launches
that it was recorded from. Later steps write their inputs there and replay it, all in the order of one stream, so that a
step in flight reads its own inputs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.sampler.repeated import Draws, draws_of, sampled
from tenonry_torch_base.sampler.sampler import Sampled
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.runner.forward_pass import ForwardPass
from tenonry_worker_torch_cuda.graphs.buckets import bucket_of, bucket_sizes
from tenonry_worker_torch_cuda.graphs.inputs import DeviceTable, StepRows

if TYPE_CHECKING:
    from tenonry_torch_base.sampler.columns import SamplingColumns
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step import Step
    from tenonry_worker_torch_cuda.graphs.maker import Graph, GraphMaker

logger = logging.getLogger("tenonry.worker")

ALIKE = 0.02  # distance of a replay's logits, in shares of their norm: libraries may choose another product


class Outputs:
    """Results of all graphs, read before the next step."""

    def __init__(self, size: int, logits: torch.Tensor) -> None:
        """`logits`: of some step."""
        device = logits.device
        self.logits = logits.new_empty(size, logits.shape[1])
        self.token_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self.failure = torch.zeros(size, dtype=torch.int32, device=device)


class GraphedPass(ForwardPass):
    """Replays a graph for each step in which all rows decode and sample; other steps are launched normally.

    Graphs also sample and record tokens for rows that need only sampling parameters. Otherwise the sampler's tokens
    replace them. `reason`: why no step is replayed; None if steps are.
    """

    def __init__(
        self, context: RunnerContext, features: FeatureList, dummy_block: int, maker: GraphMaker
    ) -> None:
        self._maker = maker
        self._sizes = bucket_sizes(len(context.state.handle))
        self._graphs: dict[tuple[int, Draws], Graph] = {}
        self._rows: dict[int, StepRows] = {}
        self._table: DeviceTable | None = None
        self._outputs: Outputs | None = None
        self._history = context.history.tokens
        self._columns: SamplingColumns | None = None
        self._thresholds = context.model.thresholds
        self.reason: str | None = None
        super().__init__(context, features, dummy_block)
        if features.sees_decodes or features.needs_hidden:
            names = ", ".join(each.name for each in features if each.sees_decodes)
            self._stop(f"the runner features {names} take part in each step")

    def sample_with(self, sampler: Sampler) -> None:
        if not self._features.before_sampling:
            self._columns = sampler.columns

    def adopt(self, model: LoadedModel) -> None:
        self.release()
        super().adopt(model)

    def forget_model(self) -> None:
        self.release()
        super().forget_model()

    def release(self) -> None:
        self._graphs.clear()
        self._rows.clear()
        self._table = self._outputs = None
        self._maker.release()

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows of the graphs that exist."""
        return sorted({size for size, _ in self._graphs})

    def compute(self, step: Step) -> None:
        if self.reason is not None or not is_decode(step):
            super().compute(step)
            return
        draws = self._draws(step)
        rows = self._filled(step, draws)
        if rows is None:
            super().compute(step)
            return
        count = len(step.inputs.row)
        graph = self._graphs.get((rows.size, draws or Draws.GREEDY))
        if graph is None:
            step.logits = self._recorded(rows, draws or Draws.GREEDY)[:count]
            return
        graph.replay()
        outputs = self._outputs
        assert outputs is not None  # noqa: S101 - a graph fills it
        step.logits = outputs.logits[:count]
        if draws is not None:
            step.sampled = Sampled(outputs.token_ids[:count], outputs.failure[:count])

    def _draws(self, step: Step) -> Draws | None:
        """Return the draws in the graph of a step; None if the sampler makes them."""
        if self._columns is None or step.is_part or self._failures.any:
            return None
        return draws_of(self._columns, step.sampling.row)

    def _filled(self, step: Step, draws: Draws | None) -> StepRows | None:
        """Return the rows of a bucket with the step's inputs; None without enough memory."""
        size = bucket_of(len(step.inputs.row), self._sizes)
        rows = self._rows.get(size)
        try:
            if self._table is None:
                self._table = DeviceTable(self._state, self._dummy_block, self.model.device)
            if rows is None:
                rows = self._rows[size] = StepRows(size, self._table, self.model.device)
        except torch.OutOfMemoryError as error:
            self._stop_for(error)
            return None
        self._table.send(step.inputs.row, self.generation, step.buffers)
        rows.fill(step.inputs, step.model_inputs, self._state, self._dummy_block, step.buffers)
        if draws is Draws.RANDOM:
            assert self._columns is not None  # noqa: S101 - `_draws` looked
            rows.draws.fill(self._columns, step.sampling, step.buffers)
        return rows

    def _recorded(self, rows: StepRows, draws: Draws) -> torch.Tensor:
        """Launch the step in `rows`, return its logits, and record a graph of these launches for later steps."""
        wanted = self._launched(rows)
        try:
            if self._outputs is None:
                self._outputs = Outputs(self._sizes[-1], wanted)
            outputs = self._outputs
            # Initialise lazily created objects first.
            sampled(wanted, rows.draws.values, draws, self._thresholds)
            graph = self._maker.record(lambda: self._fill(outputs, rows, draws))
            graph.replay()
        except RuntimeError as error:
            if draws is Draws.RANDOM:
                self._sample_outside(error)
            else:
                self._stop_for(error)
            return wanted
        if not is_alike(outputs.logits[: rows.size], wanted):
            self._stop("a replayed step differs from a launched one")
            return wanted
        self._graphs[rows.size, draws] = graph
        return wanted

    def _launched(self, rows: StepRows) -> torch.Tensor:
        plan = self.model.backend.decode_plan(rows.attended())
        return self.forward(rows.token_ids, rows.positions(), None, ForwardPlans(plan))

    def _fill(self, outputs: Outputs, rows: StepRows, draws: Draws) -> None:
        """The launches of a graph."""
        logits = self._launched(rows)
        outputs.logits[: rows.size].copy_(logits)
        token_ids, failure = sampled(logits, rows.draws.values, draws, self._thresholds)
        outputs.token_ids[: rows.size].copy_(token_ids)
        outputs.failure[: rows.size].copy_(failure)
        rows.record(token_ids, self._history)

    def _sample_outside(self, error: RuntimeError) -> None:
        """Leave sampling to the sampler from now on."""
        self._columns = None
        reason = str(error).partition("\n")[0]
        logger.warning("CUDA graphs exclude sampling: %s", reason)

    def _stop_for(self, error: RuntimeError) -> None:
        said = str(error).partition("\n")[0]
        if isinstance(error, torch.OutOfMemoryError):
            self._stop(
                f"there is no memory for one ({said}); a lower --gpu-memory-utilization leaves more"
            )
        else:
            self._stop(
                f"none can be recorded ({said}); a newer driver may allow it, --enforce-eager does without"
            )

    def _stop(self, reason: str) -> None:
        """Launch all further steps."""
        self.reason = reason
        self.release()
        logger.warning("CUDA graphs disabled, launching steps kernel by kernel: %s", reason)


def is_decode(step: Step) -> bool:
    """Return True if each row computes and samples one token, with plain inputs."""
    inputs = step.inputs
    if step.verifies or step.prompt_tokens or len(inputs.token_ids) != len(inputs.row):
        return False
    is_plain = step.model_inputs is step.token_ids and step.positions.ndim == 1
    has_none = step.lengths is None and step.last_seen is None
    return is_plain and has_none and bool(inputs.samples.all())


def is_alike(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return True if finite logits are equal up to rounding; logits of a damaged model are inconclusive."""
    made, wanted = made.float(), wanted.float()
    is_finite = torch.isfinite(wanted)
    wanted = torch.where(is_finite, wanted, 0.0)
    distance = (torch.where(is_finite, made, 0.0) - wanted).norm()
    return bool(distance <= ALIKE * wanted.norm())
