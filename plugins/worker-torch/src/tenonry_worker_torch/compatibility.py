"""Conflicts of all parts of the worker. Worker process, and whoever writes the reference page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_torch_base.attention import kv_storage
from tenonry_torch_base.conflicts import Conflicts
from tenonry_torch_base.parallel import experts
from tenonry_torch_base.points import resolve
from tenonry_worker_torch import invariant_settings
from tenonry_worker_torch.drafting import start as drafting
from tenonry_worker_torch.passes.order import INSTALLED_CONFLICTS
from tenonry_worker_torch.passes.weights import Quantise
from tenonry_worker_torch.points import MODEL_PASSES, RUNNER_FEATURES
from tenonry_worker_torch.runner.features.adapters import AdapterRows
from tenonry_worker_torch.runner.features.images import ImageRows

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = (
    experts.CONFLICTS,
    Conflicts("max_images", ImageRows.conflicts),
    Conflicts("max_loras", AdapterRows.conflicts),
    Conflicts("quantization", Quantise.conflicts),
    kv_storage.CONFLICTS,
    invariant_settings.CONFLICTS,
    drafting.CONFLICTS,
    INSTALLED_CONFLICTS,
)


def of_packages(options: Any, allow_experimental: bool) -> Iterator[Conflicts]:
    """Conflicts of model passes and runner features that the options name. Raises PluginError.

    `allow_experimental`: as of `resolve_point`.
    """
    for point, choices in (
        (MODEL_PASSES, getattr(options, "model_passes", ())),
        (RUNNER_FEATURES, getattr(options, "runner_features", ())),
    ):
        for choice in choices:
            found, record = resolve(point, choice, {}, allow_experimental=allow_experimental)
            yield Conflicts(point.kind, found.conflicts, f"{point.kind} {record.name}")
