"""Incompatible settings: their declarations, and the rejection before weights are read. Worker process.

Runner features, model passes and other parts declare `conflicts`: for each incompatible setting, the reason and an
alternative. `docs/reference/compatibility.md` is generated from the same declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tenonry.errors import ConfigError
from tenonry_torch_base.settings import TorchSettings, torch_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from tenonry.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Setup:
    """Facts known before weights are read. `dtype`: of the served model, None before its files are read.
    `quantisation`: name of the one made at load; `stored_quantisation`: name of the checkpoint's.
    """

    config: EngineConfig
    options: Any
    device: torch.device
    dtype: torch.dtype | None = None
    quantisation: str | None = None
    stored_quantisation: str | None = None
    has_connector: bool = False


class Condition(NamedTuple):
    """A setting in effect. `when`: its value, for the reference page. `found`: its text; None if not in effect."""

    when: str
    found: Callable[[Setup], str | None]


@dataclass(frozen=True, slots=True)
class Conflicts:
    """Declaration of one part. `setting`: name of the condition that enables it. `given`: setting → reason."""

    setting: str
    given: Mapping[str, str] = field(default_factory=dict)
    text: str = ""  # of a part that is on without a condition


def _of_field(name: str, is_set: Callable[[Any], bool] = bool) -> Callable[[Setup], str | None]:
    """A setting of the kernel or of the worker, as `name=value`."""

    def found(setup: Setup) -> str | None:
        is_own = name in TorchSettings.model_fields
        value = getattr(torch_settings(setup.config) if is_own else setup.config, name)
        if not is_set(value):
            return None
        return name if value is True else f"{name}={getattr(value, 'name', value)}"

    return found


def _of_option(
    name: str, default: object, is_set: Callable[[Any], bool] = bool
) -> Callable[[Setup], str | None]:
    """A worker option, as `name=value`."""

    def found(setup: Setup) -> str | None:
        value = getattr(setup.options, name, default)
        if not is_set(value):
            return None
        if isinstance(value, tuple):
            return f"{name}={', '.join(each.name for each in value)}"
        return f"{name}={str(value).lower()}"

    return found


def _more_than_one(value: int) -> bool:
    return value > 1


def _at_load(setup: Setup) -> str | None:
    return f"quantization={setup.quantisation}" if setup.quantisation else None


def _in_checkpoint(setup: Setup) -> str | None:
    name = setup.stored_quantisation
    return f"a checkpoint quantised with {name}" if name else None


# Every setting that a declaration may name.
CONDITIONS: dict[str, Condition] = {
    "attention_backend": Condition("set", _of_field("attention_backend")),
    "batch_invariant": Condition("true", _of_field("batch_invariant")),
    "device": Condition(
        "not the CPU",
        lambda setup: f"device={setup.device}" if setup.device.type != "cpu" else None,
    ),
    "drafter": Condition("set", _of_field("drafter")),
    "dtype": Condition(
        "float16", lambda setup: "dtype=float16" if str(setup.dtype) == "torch.float16" else None
    ),
    "enable_expert_parallel": Condition("true", _of_field("enable_expert_parallel")),
    "enforce_eager": Condition("true", _of_field("enforce_eager")),
    "fuse": Condition("worker option, false", _of_option("fuse", True, lambda fuse: not fuse)),
    "kv_cache_dtype": Condition(
        "other than auto", _of_field("kv_cache_dtype", lambda value: value != "auto")
    ),
    "kv_connector": Condition(
        "set",
        lambda setup: (
            _of_field("kv_connector")(setup) or ("kv_connector" if setup.has_connector else None)
        ),
    ),
    "load_format": Condition("sharded", _of_field("load_format", lambda value: value == "sharded")),
    "max_images": Condition("above 0", _of_field("max_images")),
    "max_loras": Condition("above 0", _of_field("max_loras")),
    "max_round_tokens": Condition("1", _of_field("max_round_tokens", lambda value: value == 1)),
    "model_passes": Condition("worker option, set", _of_option("model_passes", ())),
    "pipeline_parallel_size": Condition(
        "above 1", _of_field("pipeline_parallel_size", _more_than_one)
    ),
    "quantization": Condition("set, for a checkpoint of floats", _at_load),
    "quantised checkpoint": Condition("served", _in_checkpoint),
    "step_kernels": Condition(
        "worker option, none", _of_option("step_kernels", None, lambda name: name == "none")
    ),
    "tensor_parallel_size": Condition("above 1", _of_field("tensor_parallel_size", _more_than_one)),
}


def first_conflict(part: Conflicts, setup: Setup) -> str | None:
    """Return an active setting incompatible with the part, with the reason; None without one."""
    for name, reason in part.given.items():
        other = CONDITIONS[name].found(setup)
        if other is not None:
            return f"{other}: {reason}"
    return None


def refuse_conflicts(parts: Iterable[Conflicts], setup: Setup) -> None:
    """Raise ConfigError for the first part that is on and does not go with another setting."""
    for part in parts:
        own = part.text or CONDITIONS[part.setting].found(setup)
        if own is None:
            continue
        conflict = first_conflict(part, setup)
        if conflict is not None:
            raise ConfigError(f"{own} does not go with {conflict}")
