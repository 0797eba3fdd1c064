"""Makes a loaded module ready to serve: described, made fast and checked. Worker process."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from tenonry.errors import ConfigError, ModelError
from tenonry_torch_base.attention.base import refusal_of
from tenonry_torch_base.attention.groups import GroupedBackend, layer_groups
from tenonry_torch_base.attention.kv_storage import STORAGES
from tenonry_torch_base.onednn import without_onednn
from tenonry_torch_base.parallel.stage import stage_of
from tenonry_torch_base.step_cache import step_cache_for
from tenonry_worker_torch.adapters.attach import AdapterTargets
from tenonry_worker_torch.adapters.targets import calls_of
from tenonry_worker_torch.fuse.generic import unpack_read
from tenonry_worker_torch.fuse.quantised import refuse_others
from tenonry_worker_torch.images.encoder import ImageEncoder
from tenonry_worker_torch.loaded_model import LoadedModel
from tenonry_worker_torch.loading.image_mask import mark_spans
from tenonry_worker_torch.loading.packed_run import PackedRun
from tenonry_worker_torch.loading.probe import ProbeResult, blaming, named_failure, probe
from tenonry_worker_torch.loading.prompts import prompt_lengths
from tenonry_worker_torch.loading.rotary_lengths import follow_lengths
from tenonry_worker_torch.loading.stored import is_in_floats
from tenonry_worker_torch.model_checks import ModelChecks
from tenonry_worker_torch.passes.model_pass import PassFacts
from tenonry_worker_torch.passes.optimise import optimise
from tenonry_worker_torch.passes.order import in_order
from tenonry_worker_torch.state.backend import NoAttention, StatefulBackend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from tenonry.kv_cache import LengthClasses
    from tenonry_torch_base.attention.base import AttentionBackend
    from tenonry_torch_base.attention.groups import LayerGroup
    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_torch_base.finite import NotFiniteError
    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.build_plan import BuildPlan
    from tenonry_worker_torch.forward import StepLengths
    from tenonry_worker_torch.images.check import ImageCheck

logger = logging.getLogger("tenonry.worker")


def build(module: PreTrainedModel, plan: BuildPlan) -> LoadedModel:
    """Probe the module, bind it to a backend, make it fast, and check it. Raises ModelError or ConfigError."""
    lengths = _prepare(module, plan.parallel, plan.max_model_len)
    found, damage = _probed(module, plan)
    if plan.image_check is not None:
        mark_spans(module, found.specs)
        _refuse_sections(module, lengths)
    model = _bound(module, found, lengths, plan)
    run = PackedRun(
        model.backend,
        model.layers,
        model.buffers,
        is_last=plan.parallel.link.is_last,
        lengths=model.lengths,
    )
    checks = ModelChecks(module, run, found, plan.parallel, plan.max_model_len)
    adapter_targets = None if plan.adapters is None else _adapter_targets(model, plan.adapters)
    if plan.image_check is not None:
        images = _open_images(model, plan.image_check, skip_check=plan.skip_check)
        plan = replace(plan, fuse=plan.fuse and not images.needs_own_layers)
    # Other stages are unaware of the damage, and compute with this one until the checks end.
    with named_failure(module, plan.parallel.tensor.size), blaming(damage):
        if plan.fuse or not plan.skip_check:
            with without_onednn(applies=is_in_floats(module)):
                checks.prepare(may_fuse=plan.fuse)
        if plan.fuse:
            _make_fast(model, checks, plan, adapter_targets)
        elif plan.quantisation is not None and plan.quantisation.config is None:
            refuse_others(None, type(module).__name__, plan.quantisation.name)
        _check(model, checks, run, plan)
    if adapter_targets is not None:
        adapter_targets.hook()
        adapter_targets.log()
    run.release()
    return model


def _probed(module: PreTrainedModel, plan: BuildPlan) -> tuple[ProbeResult, NotFiniteError | None]:
    """The first run, and the damage of weights that another stage has to learn of in a check."""
    parallel = plan.parallel
    vocab_size = int(module.config.get_text_config().vocab_size)
    watched = None if plan.adapters is None else module
    with (
        named_failure(module, parallel.tensor.size),
        calls_of(watched) as calls,
        without_onednn(applies=is_in_floats(module)),
    ):
        found = probe(module, vocab_size, parallel, plan.max_model_len)
        damage = found.damage(module, only_warns=plan.skip_check)
    if damage is not None and parallel.link.num_stages == 1:
        raise damage
    if plan.adapters is not None:
        calls.check(plan.adapters.targets, [len(found.given)])
    return found, damage


def _bound(
    module: PreTrainedModel,
    found: ProbeResult,
    lengths: tuple[StepLengths, LengthClasses] | None,
    plan: BuildPlan,
) -> LoadedModel:
    """The model over attention layers of its backend."""
    groups = layer_groups(found.specs, plan.backend, by_window=plan.window_groups)
    storage = STORAGES[plan.kv_cache_dtype]
    backend = _backend(plan.backend, module, found, groups, storage)
    model = LoadedModel(
        module, backend, plan.buffers, found, plan.max_model_len, plan.parallel, groups, lengths
    )
    model.kernels = plan.kernels
    model.is_invariant = plan.invariant
    return model


def _make_fast(
    model: LoadedModel, checks: ModelChecks, plan: BuildPlan, adapter_targets: AdapterTargets | None
) -> None:
    """Apply all passes, and log the active ones."""
    facts = PassFacts(
        checks,
        plan.max_model_len,
        STORAGES[plan.kv_cache_dtype](model.dtype),
        is_checked=not plan.skip_check,
        kernels=plan.kernels,
        quantisation=plan.quantisation,
        adapter_targets=adapter_targets,
        phases=plan.phases,
    )
    report = model.passes = optimise(model, in_order(model.device.type, plan.passes), facts)
    architecture = type(model.module).__name__
    logger.debug("Model passes of %s:\n%s", architecture, report.table)
    if model.parallel.tensor.rank == 0:
        logger.info("Model passes of %s: %s; %s", architecture, report.line, model.chosen_kernels)


def _prepare(
    module: PreTrainedModel, parallel: Parallel, max_model_len: int
) -> tuple[StepLengths, LengthClasses] | None:
    """Prepare the module for steps and for the other stages; returns the result of `follow_lengths`."""
    config = module.config.get_text_config()
    parallel.link.carries(int(config.hidden_size), module.dtype, module.device)
    stage_of(module).cache = step_cache_for(module)
    return follow_lengths(module, max(max_model_len, *prompt_lengths(config, max_model_len)))


def _refuse_sections(
    module: PreTrainedModel, lengths: tuple[StepLengths, LengthClasses] | None
) -> None:
    """Raises ModelError where tables follow positions that are not counted by token."""
    if lengths is None or not any(hasattr(part, "mrope_section") for part in module.modules()):
        return
    raise ModelError(
        f"max_images: {type(module).__name__} rotates by the largest position of a sequence, and its images take "
        "positions of their own; use max_images=0 to serve it for text"
    )


def _open_images(model: LoadedModel, image_check: ImageCheck, *, skip_check: bool) -> ImageEncoder:
    """Vision encoder of the model, with the references of the check."""
    model.images = ImageEncoder(model.module)
    image_check.prepare(model.images, model.module, skip=skip_check)
    return model.images


def _adapter_targets(model: LoadedModel, adapters: Adapters) -> AdapterTargets:
    """The places of the model where adapters may add to a layer."""
    model.adapters = adapters
    adapters.is_on_host = model.device.type == "cpu"
    targets = AdapterTargets(adapters, model.module)
    targets.refuse_inside([mixer.module for mixer in model.mixers])
    return targets


def _check(model: LoadedModel, checks: ModelChecks, run: PackedRun, plan: BuildPlan) -> None:
    """Compare the final model with its own code; then with rounded K and V, if their storage rounds."""
    if not plan.skip_check:
        checks.require(model.forward)
        unpack_read(model.module)
        if plan.image_check is not None:
            architecture = type(model.module).__name__
            plan.image_check.require(model.forward, run, architecture, model.max_model_len)
    storage = STORAGES[plan.kv_cache_dtype](model.dtype)
    if storage.is_exact:
        return
    model.backend.keep_in(storage)
    if not plan.skip_check:
        checks.require_rounded(model.forward, storage.tolerance)


def _backend(
    backend_class: type[AttentionBackend],
    module: PreTrainedModel,
    found: ProbeResult,
    groups: Sequence[LayerGroup],
    storage: type[KVStorage],
) -> AttentionBackend:
    """Backend for the layers of the probe run, combined with state if the model has any."""
    specs = found.specs
    kind = backend_class if specs else NoAttention
    reason = refusal_of(kind, specs, module.dtype, module.device, storage)
    if reason:
        raise ConfigError(
            f"attention backend '{kind.name}' cannot run {type(module).__name__}: {reason}"
        )
    parts = [kind(group.layers, module.dtype, module.device) for group in groups]
    attention = parts[0] if len(parts) == 1 else GroupedBackend(parts)
    return attention if found.states is None else StatefulBackend(attention, found.states)
