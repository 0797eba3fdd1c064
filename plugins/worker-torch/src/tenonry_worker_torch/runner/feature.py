"""Interface of runner features; the extension point `tenonry.runner_features`. Worker process.

A feature is one capability of the model runner, such as adapters or images. The runner calls the hooks that a feature
overrides, in the order of the features; features are independent. A hook without an override costs nothing.

For each pass: `leave` and `enter` for rows that change, `prepare`, the forward pass, `before_sampling`, sampling,
`after`. A step without rows only calls `leave` and `enter`. A multi-token step consists of several passes. A pass that
runs out of memory is split: `prepare` is called again with each part, the other hooks once with the whole pass.
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

from tenonry.interfaces.plugin import NO_OPTIONS, NoOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray
    from pydantic import BaseModel

    from tenonry.step import NewRow
    from tenonry_scheduling.columns import BatchState
    from tenonry_torch_base.history import History
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.step import RowFailures, Step


class Split(IntEnum):
    """Permitted division of a pass that ran out of memory, for a second attempt in parts."""

    NEVER = 0  # the pass may have changed inputs of a repeated one
    BETWEEN_ROWS = 1
    ANYWHERE = 2


@dataclass(slots=True)
class RunnerContext:
    """The runner from the view of features. `model` is replaced when weights change: features must not keep a
    reference.

    `state` and `history` hold the tokens of all rows, on the host and on the device; `failures` receives rows that
    cannot be served. `num_state_slots`: snapshots in addition to the states of rows. `options`: of this feature.
    """

    model: LoadedModel
    state: BatchState
    history: History
    failures: RowFailures
    num_state_slots: int = 0
    options: Any = NO_OPTIONS


class RunnerFeature(ABC):
    """One capability of the runner. All hooks do nothing unless overridden, and run in inference mode.

    `split`: how a pass with this feature may be divided. `sees_decodes`: False permits kernels that decode several
    tokens in one call, without hooks between them. `needs_hidden`: fills `Step.hidden`. `conflicts`: incompatible
    settings, each with the reason and an alternative; see `tenonry_torch_base.conflicts`. `Options`: pydantic model of
    `options`, set by a user with `{"name": …, "options": {…}}`.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    split: ClassVar[Split] = Split.ANYWHERE
    sees_decodes: ClassVar[bool] = True
    needs_hidden: ClassVar[bool] = False
    conflicts: ClassVar[Mapping[str, str]] = {}
    Options: ClassVar[type[BaseModel]] = NoOptions

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        """Return True if this model, on this rank, needs the feature."""
        return True

    def __init__(self, context: RunnerContext) -> None:
        self.context = context
        self.options = context.options

    def enter(self, new: NewRow) -> None:  # noqa: B027 - optional, as are all hooks
        """A request starts in a free row, or resumes after preemption; the columns hold it already."""

    def leave(self, rows: NDArray[np.int32]) -> None:  # noqa: B027
        """Remove these rows."""

    def prepare(self, step: Step) -> None:  # noqa: B027
        """Set the inputs of the forward pass. Called again for parts of a pass, so it must not count tokens."""

    def before_sampling(self, step: Step) -> None:  # noqa: B027
        """Change `step.logits` in place, or fail rows."""

    def after(self, step: Step) -> None:  # noqa: B027
        """Record results: the tokens of the pass are known."""

    def dummy(self) -> None:  # noqa: B027
        """Prepare a forward pass without rows, shared with ranks of other engines."""

    def allocate(self) -> None:  # noqa: B027
        """Allocate memory by row: at the start, and after `release`."""

    def release(self) -> None:  # noqa: B027
        """Free memory by row, when no rows exist; no step follows before `allocate`."""

    def adopt(self) -> None:  # noqa: B027
        """Set up for `context.model`, at the start and after weights were replaced, when no rows exist."""

    def shutdown(self) -> None:  # noqa: B027
        """Release everything; the worker ends."""
