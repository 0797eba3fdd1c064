"""Makes a loaded module ready to serve: described, made fast and checked. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry.errors import ConfigError, ModelError
from tenonry_torch_base.phases import Phases
from tenonry_worker_torch.adapters.attach import Seats
from tenonry_worker_torch.adapters.targets import calls_of
from tenonry_worker_torch.attention.base import refusal_of
from tenonry_worker_torch.attention.groups import GroupedBackend, layer_groups
from tenonry_worker_torch.attention.kv_storage import AUTO, STORAGES
from tenonry_worker_torch.fuse.generic import unpack_read
from tenonry_worker_torch.fuse.quantised import refuse_others
from tenonry_worker_torch.images.encoder import ImageEncoder
from tenonry_worker_torch.loaded_model import LoadedModel
from tenonry_worker_torch.loading.image_mask import mark_spans
from tenonry_worker_torch.loading.packed_run import PackedRun
from tenonry_worker_torch.loading.probe import ProbeResult, blaming, named_failure, probe
from tenonry_worker_torch.loading.prompts import prompt_lengths
from tenonry_worker_torch.loading.rotary_lengths import follow_lengths
from tenonry_worker_torch.model_checks import ModelChecks
from tenonry_worker_torch.parallel.groups import alone
from tenonry_worker_torch.parallel.stage import stage_of
from tenonry_worker_torch.passes.model_pass import PassFacts
from tenonry_worker_torch.passes.optimise import optimise
from tenonry_worker_torch.passes.order import in_order
from tenonry_worker_torch.state.backend import NoAttention, StatefulBackend
from tenonry_worker_torch.step_cache import step_cache_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from tenonry.info import PluginRecord
    from tenonry.kv_cache import LengthClasses
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.attention.base import AttentionBackend
    from tenonry_worker_torch.attention.groups import LayerGroup
    from tenonry_worker_torch.attention.kv_storage import KVStorage
    from tenonry_worker_torch.forward import StepLengths
    from tenonry_worker_torch.images.check import ImageCheck
    from tenonry_worker_torch.parallel.groups import Parallel
    from tenonry_worker_torch.passes.model_pass import ModelPass
    from tenonry_worker_torch.step_kernels import FoundKernels

logger = logging.getLogger("tenonry.worker")


def build(  # noqa: PLR0913 - by name, from one caller
    module: PreTrainedModel,
    backend_class: type[AttentionBackend],
    buffers: StepBuffers,
    *,
    max_model_len: int,
    fuse: bool,
    skip_check: bool,
    window_groups: bool = False,
    parallel: Parallel | None = None,
    phases: Phases | None = None,
    adapters: Adapters | None = None,
    image_check: ImageCheck | None = None,
    kernels: FoundKernels | None = None,
    quantisation: Quantisation | None = None,
    invariant: bool = False,
    kv_cache_dtype: str = AUTO,
    passes: Sequence[tuple[type[ModelPass], PluginRecord]] = (),
) -> LoadedModel:
    """Probe the module, bind it to a backend, make it fast, and check it. Raises ModelError or ConfigError.

    `window_groups`: layers with a window are in KV groups of their own. `adapters`: if there may be any. `image_check`:
    enables the vision encoder, and verifies it. `kernels`: for parts of a step. `quantisation`: its layers replace
    linear ones. `invariant`: a row's results may depend on no other row; it needs `kernels` and `fuse`.
    `kv_cache_dtype`: storage of K and V; all else is compared with floats in the cache before. `passes`: additional
    model passes.
    """
    parallel = parallel or alone()
    lengths = _prepare(module, parallel, max_model_len)
    vocab_size = int(module.config.get_text_config().vocab_size)
    watched = module if adapters is not None else None
    with named_failure(module, parallel.tensor.size), calls_of(watched) as calls:
        found = probe(module, vocab_size, parallel, max_model_len)
        damage = found.damage(module, only_warns=skip_check)
    if damage is not None and parallel.link.num_stages == 1:
        raise damage
    if image_check is not None:
        mark_spans(module, found.specs)
        _refuse_sections(module, lengths)
    groups = layer_groups(found.specs, backend_class, by_window=window_groups)
    storage = STORAGES[kv_cache_dtype](module.dtype)
    backend = _backend(backend_class, module, found, groups, type(storage))
    model = LoadedModel(module, backend, buffers, found, max_model_len, parallel, groups, lengths)
    model.kernels = kernels
    model.is_invariant = invariant
    run = PackedRun(
        model.backend, model.layers, buffers, is_last=parallel.link.is_last, lengths=model.lengths
    )
    checks = ModelChecks(module, run, found, parallel, max_model_len)
    seats = None
    if adapters is not None:
        calls.check(adapters.targets, [len(found.given)])
        seats = _seats(model, adapters)
    if image_check is not None:
        images = _open_images(model, image_check, skip_check=skip_check)
        fuse = fuse and not images.needs_own_layers
    compared = None if skip_check else checks
    # Other stages do not know about the damage, and compute with this one until the checks end.
    with named_failure(module, parallel.tensor.size), blaming(damage):
        if fuse or not skip_check:
            checks.prepare(may_be_lean=fuse)
        if fuse:
            facts = PassFacts(
                checks,
                max_model_len,
                storage,
                is_checked=not skip_check,
                kernels=kernels,
                quantisation=quantisation,
                seats=seats,
                phases=phases or Phases(),
            )
            _make_fast(model, facts, passes)
        elif quantisation is not None and quantisation.config is None:
            refuse_others(None, type(module).__name__, quantisation.name)
        if not skip_check:
            _check(model, checks, run, image_check)
        if not storage.is_exact:
            _round(model, storage, compared)
    if seats is not None:
        seats.hook()
        seats.log()
    run.release()
    return model


def _make_fast(
    model: LoadedModel, facts: PassFacts, passes: Sequence[tuple[type[ModelPass], PluginRecord]]
) -> None:
    """Apply all passes, and log which are used."""
    report = model.passes = optimise(model, in_order(model.device.type, passes), facts)
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


def _seats(model: LoadedModel, adapters: Adapters) -> Seats:
    """The places of the model where adapters may add to a layer."""
    model.adapters = adapters
    adapters.is_on_host = model.device.type == "cpu"
    seats = Seats(adapters, model.module)
    seats.refuse_inside([mixer.module for mixer in model.mixers])
    return seats


def _check(
    model: LoadedModel, checks: ModelChecks, run: PackedRun, image_check: ImageCheck | None
) -> None:
    checks.require(model.forward)
    unpack_read(model.module)
    if image_check is not None:
        image_check.require(model.forward, run, type(model.module).__name__, model.max_model_len)


def _round(model: LoadedModel, storage: KVStorage, checks: ModelChecks | None) -> None:
    """Keep K and V in this storage, which rounds them."""
    model.backend.keep_in(storage)
    if checks is not None:
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
