"""Interface of model passes; the extension point `tenonry.model_passes`. Worker process.

A pass makes a loaded model faster, such as fusing its layers or packing its weights. At load, each pass is queried by
`why_not`, applied, and, if it may change results, compared with the model's own code. A pass that raises, or changes
results, is undone: the server starts without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tenonry.interfaces.plugin import NO_OPTIONS, NoOptions
from tenonry_torch_base.phases import Phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.adapters.attach import AdapterTargets
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.model_checks import ModelChecks
    from tenonry_worker_torch.step_kernels import FoundKernels


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Inputs of passes besides the model.

    `checks` compare a forward pass with the model's own code; `is_checked`: False with `--skip-model-check`.
    `num_positions`: number of positions that requests may have. `storage` of K and V. `kernels`: step kernels to choose
    from. `quantisation`: of the weights. `adapter_targets`: places of adapters. `phases` times the start.
    """

    checks: ModelChecks
    num_positions: int
    storage: KVStorage
    is_checked: bool = True
    kernels: FoundKernels | None = None
    quantisation: Quantisation | None = None
    adapter_targets: AdapterTargets | None = None
    phases: Phases = field(default_factory=Phases)


class NotUsed(Exception):
    """Raised by `apply` with the reason why the pass does not fit this model after all."""


class ModelPass(ABC):
    """One optimisation of a model. A new instance is made for each model.

    `is_optional`: False ends the start where the pass raises. `keeps_invariance`: True also runs with batch invariance.
    `settles_with_next`: its results are compared with those of the next pass, in one run, where that one is used.
    `changes_module`: True if the model's own code changes, or loses its weights. `conflicts`: incompatible settings,
    each with the reason and an alternative; see `tenonry_torch_base.conflicts`. `Options`: pydantic model of `options`,
    set by a user with `{"name": …, "options": {…}}`.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    is_optional: ClassVar[bool] = True
    keeps_invariance: ClassVar[bool] = False
    settles_with_next: ClassVar[bool] = False
    changes_module: ClassVar[bool] = True
    conflicts: ClassVar[Mapping[str, str]] = {}
    Options: ClassVar[type[BaseModel]] = NoOptions
    options: Any = NO_OPTIONS

    @classmethod  # noqa: B027 - few import more
    def preload(cls) -> None:
        """Import modules used by the pass, without opening a device, in a process from which engines are forked."""

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        """Return the reason why the pass does not fit this model; None if it fits. Nothing is changed."""
        return None

    @abstractmethod
    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        """Apply the pass, and return what it changed, in a few words for the log.

        Every change goes through `changes.set`, or registers its reversal with `changes.on_undo`. Raise `NotUsed` if
        the model turns out to be different.
        """

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Compare the model's results with those of its own code.

        On several ranks, passes of other packages are called twice: first on each rank by itself, where `facts.checks`
        runs the model and compares nothing, so that a rank that raises leaves no other waiting.
        """
        return facts.checks.still_agrees(model.forward)
