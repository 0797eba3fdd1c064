"""Shared extension points of workers on torch, and resolution of their classes.

Any process: this module imports no torch, the base classes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.plugin import Point
from tenonry.plugin.discovery import find_entry_point
from tenonry.plugin.manager import resolve_point

if TYPE_CHECKING:
    from tenonry.config import PluginChoice
    from tenonry.info import PluginRecord

BUFFERS = Point(
    "tenonry.buffers",
    "tenonry_torch_base.buffers:StepBuffers",
    {"host": "tenonry-torch-base", "cuda": "tenonry-worker-torch-cuda"},
    kind="buffers",
    tier="alpha",
)
LOGITS_PROCESSORS = Point(
    "tenonry.logits_processors", "tenonry_torch_base.sampler.processors:LogitsProcessor"
)
STEP_KERNELS = Point(
    "tenonry.step_kernels",
    "tenonry_torch_base.step_kernels:StepKernels",
    {"cpu": "tenonry-kernels-cpu"},
    kind="step_kernels",
    tier="alpha",
)
QUANTISATIONS = Point(
    "tenonry.quantisations",
    "tenonry_torch_base.quantisations:Quantisation",
    {
        "awq": "tenonry-quantisations",
        "compressed-tensors": "tenonry-quantisations",
        "fp8": "tenonry-quantisations",
        "gguf": "tenonry-quantisations",
        "gptq": "tenonry-quantisations",
        "int4": "tenonry-quantisations",
        "int8": "tenonry-quantisations",
    },
)
ATTENTION_BACKENDS = Point(
    "tenonry.attention_backends",
    "tenonry_torch_base.attention.base:AttentionBackend",
    {
        "sdpa": "tenonry-torch-base",
        "cpu": "tenonry-worker-torch-cpu",
        "invariant": "tenonry-worker-torch-cpu",
        "triton": "tenonry-attention-triton",
    },
)
DEFAULT_BACKENDS = {"cpu": ("cpu", "sdpa"), "cuda": ("sdpa",)}  # the first installed one
DEFAULT_KERNELS = "cpu"
DEFAULT_BUFFERS = {"cpu": "host", "cuda": "cuda"}


def resolve(
    point: Point,
    choice: PluginChoice | str,
    resolved: dict[str, str],
    *,
    allow_experimental: bool = False,
) -> tuple[Any, PluginRecord]:
    """Resolve a class of a worker's extension point, and its record. Raises PluginError with the installed names, or
    the pip command.

    `resolved` (kind → name with version) records the result. `allow_experimental`: as of `resolve_point`.
    """
    found, record = resolve_point(point, choice, allow_experimental=allow_experimental)
    name = record.name
    origin = f"{name} ({record.distribution} {record.version})" if record.distribution else name
    earlier = resolved.get(point.kind)
    resolved[point.kind] = f"{earlier}, {origin}" if earlier else origin
    return found, record


def resolve_class(
    point: Point, name: str, resolved: dict[str, str], *, allow_experimental: bool = False
) -> Any:
    """As `resolve`, without the record."""
    return resolve(point, name, resolved, allow_experimental=allow_experimental)[0]


def default_backend(device: str) -> str:
    """Name of the first installed attention backend for a type of device."""
    names = DEFAULT_BACKENDS[device]
    return next((name for name in names if find_entry_point(ATTENTION_BACKENDS, name)), names[-1])
