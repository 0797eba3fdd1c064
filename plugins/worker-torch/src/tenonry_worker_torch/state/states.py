"""The state of all layers of one model, by row. Worker process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.buffers import put_on_host
from tenonry_torch_base.parallel.stage import stage_of
from tenonry_worker_torch.state.mixer import PackedMixer
from tenonry_worker_torch.state.mixers import cache_layers, has_only_state, mixers_of, state_layers
from tenonry_worker_torch.state.plan import StateStep, continues, plan_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.base import AttentionBatch


class States:
    """The layers with state, in the model's order.

    Each layer has a tensor of states by row: running requests, a scratch row, and then the snapshots, by slot.
    """

    def __init__(
        self, mixers: Sequence[PackedMixer], step: StateStep, model: PreTrainedModel
    ) -> None:
        self.mixers = list(mixers)
        self.step = step
        self.family = type(model).__name__
        self.config = model.config.get_text_config()
        layers = stage_of(model).layers
        self.own_layers = range(len(cache_layers(self.config))) if layers is None else layers
        self.device = model.device
        self.num_rows = 0
        self._last: AttentionBatch | None = None  # source of the step's plan, if reusable

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(mixer.name for mixer in self.mixers)

    @property
    def is_alone(self) -> bool:
        """True if the whole model has no attention."""
        return has_only_state(self.config)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row's state over all layers."""
        return sum(
            shape.num_bytes for mixer in self.mixers for shape in mixer.state.shapes.values()
        )

    def check(self, attention: Sequence[torch.nn.Module]) -> None:
        """Check the layers after the probe run. Raises ModelError for an unreached one, or one that calls attention."""
        for mixer in self.mixers:
            if not mixer.is_known:
                raise mixer.refusal("a prompt does not reach it")
            inside = {id(module) for module in mixer.module.modules()}
            if any(id(module) in inside for module in attention):
                raise mixer.refusal("attention is computed inside it")
        kept = {mixer.state.index for mixer in self.mixers}
        lost = state_layers(self.config).intersection(self.own_layers) - kept
        if lost:
            raise ModelError(
                f"layers {sorted(lost)} of {self.family} keep state in a way that worker 'torch' does not know"
            )

    def allocate(self, num_rows: int, num_slots: int = 0) -> None:
        """Room for `num_rows` rows and `num_slots` snapshots."""
        self.num_rows = num_rows
        self._last = None
        for mixer in self.mixers:
            mixer.allocate(num_rows + 1 + num_slots, self.device)

    def restore(self, slots: list[int], rows: list[int]) -> None:
        """Restore snapshots to rows that start after a shared prefix, before a pass."""
        self._copy(self._slots(slots), rows)

    def save(self, rows: list[int], slots: list[int]) -> None:
        """Copy the states of rows to snapshots, after a pass."""
        self._copy(rows, self._slots(slots))

    def _slots(self, slots: list[int]) -> list[int]:
        return [self.num_rows + 1 + slot for slot in slots]

    def _copy(self, source: list[int], target: list[int]) -> None:
        if source:
            source_rows = torch.tensor(source, device=self.device)
            target_rows = torch.tensor(target, device=self.device)
            for mixer in self.mixers:
                mixer.copy_states(source_rows, target_rows)

    def release(self) -> None:
        """Release the memory; the layers run unchanged until the next plan."""
        self.num_rows = 0
        self._last = self.step.plan = None
        for mixer in self.mixers:
            mixer.pools = {}

    def plan(self, batch: AttentionBatch) -> None:
        """Plan the next step. Outside of serving, rows are added as needed.

        On the CPU, the plan of a decode-only step is reused until a row enters or leaves.
        """
        earlier = self.step.plan
        last = self._last
        if last is not None and earlier is not None and continues(earlier, last, batch):
            return
        needed = int(batch.row.max(initial=-1)) + 1
        if needed > self.num_rows:
            self.allocate(needed)
        if self.device.type == "cpu":  # in memory unused by later steps
            batch = replace(batch, row=batch.row.copy(), put=put_on_host)
            self._last = batch
        self.step.plan = plan_of(
            batch, self.num_rows, fills_up=all(mixer.fills_up for mixer in self.mixers)
        )


def bind_states(model: PreTrainedModel) -> States | None:
    """Replace the forward of every layer with state; None for a model without any, equal for all its stages.

    Raises ModelError, by layer.
    """
    config = model.config.get_text_config()
    found = mixers_of(model)
    if not found and (stage_of(model).layers is None or not state_layers(config)):
        return None
    step = StateStep()
    for name in found:
        inner = next((other for other in found if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise ModelError(
                f"layer {name} keeps state and so does {inner} inside it, which worker 'torch' cannot separate"
            )
    mixers = [PackedMixer(name, module, config, step) for name, module in found.items()]
    return States(mixers, step, model)
