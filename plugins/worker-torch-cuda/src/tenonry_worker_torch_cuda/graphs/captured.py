"""Steps in which all rows decode, each replayed as one graph. Worker process.

A graph is recorded when a step first needs it, over inputs in memory that stays, and is compared once with the launches
that it was recorded from. Later steps write their inputs there and replay it, all in the order of one stream, so that a
step in flight reads its own inputs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.runner.forward_pass import ForwardPass
from tenonry_worker_torch_cuda.graphs.buckets import bucket_of, bucket_sizes
from tenonry_worker_torch_cuda.graphs.inputs import DeviceTable, StepRows

if TYPE_CHECKING:
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step import Step
    from tenonry_worker_torch_cuda.graphs.maker import Graph, GraphMaker

logger = logging.getLogger("tenonry.worker")

ALIKE = 0.02  # distance of a replay's logits, in shares of their norm: libraries may choose another product


class DecodeGraph(NamedTuple):
    """Steps of up to `rows.size` rows that decode: their inputs, and the graph that computes logits of them."""

    rows: StepRows
    graph: Graph


class GraphedPass(ForwardPass):
    """Replays a graph for each step in which all rows decode and sample; other steps are launched as before.

    `reason`: why no step is replayed; None where they are.
    """

    def __init__(
        self, context: RunnerContext, features: FeatureList, dummy_block: int, maker: GraphMaker
    ) -> None:
        self._maker = maker
        self._sizes = bucket_sizes(len(context.state.handle))
        self._graphs: dict[int, DecodeGraph] = {}
        self._table: DeviceTable | None = None
        self._logits: torch.Tensor | None = (
            None  # of all graphs: a step's are read before the next one
        )
        self.reason: str | None = None
        super().__init__(context, features, dummy_block)
        if features.sees_decodes or features.needs_hidden:
            names = ", ".join(each.name for each in features if each.sees_decodes)
            self._stop(f"the runner features {names} take part in each step")

    def adopt(self, model: LoadedModel) -> None:
        self.release()
        super().adopt(model)

    def forget_model(self) -> None:
        self.release()
        super().forget_model()

    def release(self) -> None:
        self._graphs.clear()
        self._table = self._logits = None
        self._maker.release()

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows of the graphs that exist."""
        return sorted(self._graphs)

    def compute(self, step: Step) -> None:
        if self.reason is not None or not is_decode(step):
            super().compute(step)
            return
        found = self._filled(step)
        if found is None:
            super().compute(step)
            return
        count = len(step.inputs.row)
        if isinstance(found, StepRows):
            step.logits = self._recorded(found)[:count]
        else:
            found.graph.replay()
            step.logits = self._logits[:count]  # type: ignore[index] - a graph fills it

    def _filled(self, step: Step) -> DecodeGraph | StepRows | None:
        """The graph for a step, or rows to record one over, with the step's inputs; None where memory is short."""
        size = bucket_of(len(step.inputs.row), self._sizes)
        found = self._graphs.get(size)
        try:
            if self._table is None:
                self._table = DeviceTable(self._state, self._dummy_block, self.model.device)
            rows = StepRows(size, self._table, self.model.device) if found is None else found.rows
        except torch.OutOfMemoryError as error:
            self._stop_for(error)
            return None
        self._table.send(step.inputs.row, self.generation, step.buffers)
        rows.fill(step.inputs, step.model_inputs, self._state, self._dummy_block, step.buffers)
        return rows if found is None else found

    def _recorded(self, rows: StepRows) -> torch.Tensor:
        """Logits of the step in `rows`, launched as they are; then a graph of these launches for later steps."""

        def launched() -> torch.Tensor:
            plan = self.model.backend.decode_plan(rows.attended())
            return self.forward(rows.token_ids, rows.positions(), None, ForwardPlans(plan))

        wanted = launched()
        try:
            if self._logits is None:
                self._logits = wanted.new_empty(self._sizes[-1], wanted.shape[1])
            made = self._logits[: rows.size]
            graph = self._maker.record(lambda: made.copy_(launched()))
            graph.replay()
        except RuntimeError as error:
            self._stop_for(error)
            return wanted
        if not is_alike(made, wanted):
            self._stop("a replayed step differs from a launched one")
            return wanted
        self._graphs[rows.size] = DecodeGraph(rows, graph)
        return wanted

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
        logger.warning("No CUDA graphs, steps are launched kernel by kernel: %s", reason)


def is_decode(step: Step) -> bool:
    """Return True if each row computes and samples one token, with plain inputs."""
    inputs = step.inputs
    if step.verifies or step.prompt_tokens or len(inputs.token_ids) != len(inputs.row):
        return False
    is_plain = step.model_inputs is step.token_ids and step.positions.ndim == 1
    has_none = step.lengths is None and step.last_seen is None
    return is_plain and has_none and bool(inputs.samples.all())


def is_alike(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Return True if finite logits are the same but for rounding; those of a damaged model say nothing."""
    made, wanted = made.float(), wanted.float()
    is_finite = torch.isfinite(wanted)
    wanted = torch.where(is_finite, wanted, 0.0)
    distance = (torch.where(is_finite, made, 0.0) - wanted).norm()
    return bool(distance <= ALIKE * wanted.norm())
