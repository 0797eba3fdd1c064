"""Examination of a model before a weight is read. Worker process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tenonry_hf_hub import holds_weights
from tenonry_torch_base.attention.default import backend_of
from tenonry_torch_base.conflicts import Setup, refuse_conflicts
from tenonry_torch_base.device import choose_device, choose_dtype
from tenonry_torch_base.parallel.experts import check_experts, check_settings
from tenonry_torch_base.points import ATTENTION_BACKENDS, resolve_class
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.compatibility import OWN, of_packages
from tenonry_worker_torch.invariant_settings import BACKEND, serves_invariant
from tenonry_worker_torch.loading.examine import examine, known_facts
from tenonry_worker_torch.loading.load import look
from tenonry_worker_torch.setting_checks import check_adapters, check_quantisation

if TYPE_CHECKING:
    import torch

    from tenonry.config import EngineConfig
    from tenonry.info import WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_worker_torch.loading.load import CheckpointInfo


def backend_class(
    config: EngineConfig, device: torch.device, resolved: dict[str, str], *, is_invariant: bool
) -> type[AttentionBackend]:
    """The configured attention backend, or the device's default. Raises PluginError with the installed names."""
    name = BACKEND if is_invariant else torch_settings(config).attention_backend
    if name is None:
        return backend_of(device, resolved)
    found: type[AttentionBackend] = resolve_class(ATTENTION_BACKENDS, name, resolved)
    return found


def looked(
    context: WorkerContext, *, needs_weights: bool = True
) -> tuple[CheckpointInfo, WorkerFacts]:
    """The model before a weight is read, and its facts so far. Raises ModelError as `load` would.

    Without `needs_weights`, config.json is sufficient if the folder holds no weights at all.
    """
    config = context.config
    if config.enable_expert_parallel:
        check_settings(config)
    device = choose_device(config.device, context.local_rank, config.world_size)
    consent = config.allow_experimental_plugins
    parts = [*OWN, *of_packages(context.options, consent)]
    setup = Setup(config, context.options, device, has_connector=context.kv_connector is not None)
    refuse_conflicts(parts, setup)
    found = look(
        context.model.path,
        load_format=config.load_format,
        towers=config.max_images > 0,
        quantization=torch_settings(config).quantization,
        is_bare=not needs_weights and not holds_weights(context.model.path),
    )
    setup = _with_model(setup, found)
    refuse_conflicts(parts, setup)
    check_quantisation(found.quantised, setup)
    if config.enable_expert_parallel:
        check_experts(found.whole, config)
    is_invariant = serves_invariant(setup, found.whole.config.model_type)
    known = known_facts(found, config, device)
    if config.max_loras or torch_settings(config).lora_modules:
        check_adapters(found, config, getattr(context.options, "max_cpu_loras", None))
    return replace(found, is_invariant=is_invariant), known


def _with_model(setup: Setup, found: CheckpointInfo) -> Setup:
    """Add the facts of the model that determine conflicts."""
    setup = replace(setup, dtype=choose_dtype(setup.config.dtype, found.whole.config, setup.device))
    if found.quantised is None:
        return setup
    quantisation = found.quantised.quantisation
    if found.quantised.is_at_load:
        return replace(setup, quantisation=quantisation.name)
    if quantisation.refusal(setup.device, setup.dtype):  # such weights are dequantised
        return setup
    return replace(setup, stored_quantisation=quantisation.name)


def facts(context: WorkerContext, found: CheckpointInfo) -> WorkerFacts:
    """Return all facts of the model known without its weights. Raises ModelError or ConfigError like `load`."""
    config = context.config
    device = choose_device(config.device, context.local_rank, config.world_size)
    return examine(
        found,
        config,
        device,
        backend_class(config, device, {}, is_invariant=found.is_invariant),
        window_groups=window_groups(config, context.options),
    )


def window_groups(config: EngineConfig, options: Any) -> bool:
    """Return True if layers with a window are in separate groups.

    Not in a pipeline: its stages have different numbers of layers of each kind, and one block table for all stages.
    """
    return config.pipeline_parallel_size == 1 and getattr(options, "sliding_window_groups", True)
