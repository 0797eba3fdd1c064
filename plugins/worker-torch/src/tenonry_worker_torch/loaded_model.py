"""A model that is loaded, described, made fast and checked. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError, ModelError
from tenonry_torch_base.phases import Phases
from tenonry_worker_torch.adapters.attach import Seats
from tenonry_worker_torch.adapters.kernels import AllLowRank, LowRankKernels
from tenonry_worker_torch.adapters.targets import calls_of
from tenonry_worker_torch.attention.base import refusal_of
from tenonry_worker_torch.attention.groups import GroupedBackend, layer_groups
from tenonry_worker_torch.attention.kv_storage import AUTO, STORAGES
from tenonry_worker_torch.attention.layer import (
    LAYER_ATTRIBUTE,
    AttentionLayer,
    LayerCalls,
    StepPlan,
)
from tenonry_worker_torch.forward import Forward, ModuleForward, StepLengths
from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch.fuse.generic import unpack_read
from tenonry_worker_torch.fuse.invariant import make_invariant, refused
from tenonry_worker_torch.fuse.quantised import refuse_others
from tenonry_worker_torch.images.encoder import ImageEncoder
from tenonry_worker_torch.invariance_check import require_invariance
from tenonry_worker_torch.loading.image_mask import mark_spans
from tenonry_worker_torch.loading.packed_run import PackedRun
from tenonry_worker_torch.loading.probe import ProbeResult, blaming, named_failure, probe
from tenonry_worker_torch.loading.prompts import prompt_lengths
from tenonry_worker_torch.loading.rotary_lengths import follow_lengths
from tenonry_worker_torch.model_checks import ModelChecks
from tenonry_worker_torch.parallel.groups import alone
from tenonry_worker_torch.parallel.stage import stage_of
from tenonry_worker_torch.state.backend import NoAttention, StatefulBackend
from tenonry_worker_torch.step_cache import step_cache_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn
    from transformers import PreTrainedModel

    from tenonry.kv_cache import LengthClasses
    from tenonry_torch_base.buffers import StepBuffers
    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.attention.base import AttentionBackend
    from tenonry_worker_torch.attention.groups import LayerGroup
    from tenonry_worker_torch.attention.kv_storage import KVStorage
    from tenonry_worker_torch.fuse.kernels.few_bits import FewBitsKernels
    from tenonry_worker_torch.fuse.kernels.found import FoundKernels
    from tenonry_worker_torch.images.check import ImageCheck
    from tenonry_worker_torch.parallel.groups import Parallel
    from tenonry_worker_torch.state.mixer import PackedMixer

logger = logging.getLogger("tenonry.worker")


class LoadedModel:
    """A model as used by the runner. `layers` is keyed by the attention module's name."""

    def __init__(
        self,
        module: PreTrainedModel,
        backend: AttentionBackend,
        buffers: StepBuffers,
        found: ProbeResult,
        max_model_len: int,
        parallel: Parallel,
        groups: Sequence[LayerGroup] = (),
        lengths: tuple[StepLengths, LengthClasses] | None = None,
    ) -> None:
        """`lengths`: result of `follow_lengths`."""
        self.module = module
        self.states = found.states
        self.backend = backend
        self.groups = tuple(groups)
        self.buffers = buffers
        self.device = module.device
        self.dtype = module.dtype
        self.vocab_size = found.made.shape[-1]  # of the last stage; the others never sample
        self.parallel = parallel
        self.max_model_len = max_model_len
        step = StepPlan(backend)
        self.layers: dict[str, AttentionLayer] = {}
        calls: dict[nn.Module, list[AttentionLayer]] = {}
        described = zip(found.specs, found.rank_heads, found.sinks, found.modules, strict=True)
        for spec, rank_heads, sinks, attention in described:
            layer = AttentionLayer(spec, step, rank_heads, sinks)
            self.layers[spec.name] = layer
            calls.setdefault(attention, []).append(layer)
        for attention, layers in calls.items():
            layer_of = layers[0] if len(layers) == 1 else LayerCalls(layers, step)
            setattr(attention, LAYER_ATTRIBUTE, layer_of)
        self.lengths = lengths and lengths[1]
        self.forward: Forward = ModuleForward(module, step, lengths and lengths[0])
        self.step = step
        self.adapters: Adapters | None = None
        self.images: ImageEncoder | None = None
        self.kernels: FoundKernels | None = None
        self.chosen_kernels = "Step kernels: none, torch alone computes"
        self.quantisation: Quantisation | None = None
        self.few_bits: FewBitsKernels | None = None  # of its quantised matrices
        self.is_invariant = False  # whether what a row gets depends on no other row

    @property
    def mixers(self) -> list[PackedMixer]:
        """The layers with state."""
        return [] if self.states is None else self.states.mixers


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
) -> LoadedModel:
    """Probe the module, bind it to a backend, make it fast, and check it. Raises ModelError or ConfigError.

    `window_groups`: layers with a window are in KV groups of their own. `adapters`: if there may be any. `image_check`:
    enables the vision encoder, and verifies it. `kernels`: for parts of a step. `quantisation`: its layers replace
    linear ones. `invariant`: a row's results may depend on no other row; it needs `kernels` and `fuse`.
    `kv_cache_dtype`: storage of K and V; all else is compared with floats in the cache before.
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
        seats = _seats(model, adapters, kernels)
    if image_check is not None:
        images = _open_images(model, image_check, skip_check=skip_check)
        fuse = fuse and not images.needs_own_layers
    compared = None if skip_check else checks
    # Other stages do not know about the damage, and compute with this one until the checks end.
    with named_failure(module, parallel.tensor.size), blaming(damage):
        if fuse or not skip_check:
            checks.prepare(may_be_lean=fuse)
        if fuse:
            _make_fast(model, checks, max_model_len, phases or Phases(), seats, quantisation)
            _use_kernels(model, kernels, compared, storage)
        elif quantisation is not None and quantisation.config is None:
            refuse_others(None, type(module).__name__, quantisation.name)
        if not skip_check:
            _check(model, checks, run, image_check)
        if invariant and isinstance(model.forward, LeanForward):
            require_invariance(model.forward, run, vocab_size, type(module).__name__)
        if not storage.is_exact:
            _round(model, storage, compared)
    if seats is not None:
        seats.hook()
        seats.log()
    run.release()
    return model


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


def _seats(model: LoadedModel, adapters: Adapters, found: FoundKernels | None) -> Seats:
    """The places of the model where adapters may add to a layer."""
    model.adapters = adapters
    adapters.is_on_host = model.device.type == "cpu"
    kernels: LowRankKernels | AllLowRank | None = None
    if found is not None:
        giver = AllLowRank if model.is_invariant else LowRankKernels
        kernels = giver(found, adapters.max_rank)
    seats = Seats(adapters, model.module, kernels)
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


def _make_fast(
    model: LoadedModel,
    checks: ModelChecks,
    max_model_len: int,
    phases: Phases,
    seats: Seats | None,
    quantisation: Quantisation | None,
) -> None:
    from tenonry_worker_torch.fuse import fast_forward, pack, quantise
    from tenonry_worker_torch.fuse.experts import use_dense_experts
    from tenonry_worker_torch.fuse.kernels.few_bits import FewBitsKernels
    from tenonry_worker_torch.fuse.mixers import drop_paths, use_paths

    group = model.parallel.layer_mates
    mixers = model.mixers
    has_paths = use_paths(mixers, group.all_agree)
    lean = fast_forward(
        model.module,
        model.layers,
        model.step,
        max(max_model_len, *checks.lengths),
        checks.agrees,
        group.all_agree,
    )
    if lean is not None:
        model.forward = lean
        # A step that samples from no row would skip the last layer, whose experts others wait for.
        lean.can_prune = lean.can_prune and model.parallel.experts is None
    elif has_paths and not group.all_agree(checks.agrees(model.forward)):
        drop_paths(mixers)
    if model.is_invariant:
        _make_invariant(model, lean, phases, seats)
        return
    if lean is None:
        checks.prepare(may_be_lean=False)
    if group.size == 1:
        use_dense_experts(model.module)
    if seats is not None and lean is not None:
        seats.wrap(lean)
    with phases.of("packing"):
        few_bits = None
        if quantisation is not None and model.kernels is not None and _is_alone(model):
            few_bits = FewBitsKernels(model.kernels, quantisation, model.dtype)
        if quantisation is not None and quantise(model.module, lean, quantisation, few_bits):
            checks.allow(quantisation.tolerance)
            model.quantisation = quantisation
            model.few_bits = few_bits
        else:
            has_kernels = model.kernels is not None and _is_alone(model)
            pack(model.module, lean, mixers, model.kernels.kernels if has_kernels else None)


def _make_invariant(
    model: LoadedModel, lean: LeanForward | None, phases: Phases, seats: Seats | None
) -> None:
    """Raises ModelError where the model runs its own code, which promises nothing of other rows."""
    architecture = type(model.module).__name__
    kernels = None if model.kernels is None else model.kernels.kernels.invariant()
    if lean is None or kernels is None:
        raise refused(f"{architecture} runs its own code")
    with phases.of("packing"):
        make_invariant(lean, kernels, architecture, [] if seats is None else seats.beside(lean))
    model.chosen_kernels = (
        f"Step kernels {model.kernels.text}: {len(lean.layers)} × layer, the norm behind them and the head, the same "
        "bits for a token whatever runs beside it"
    )
    logger.info("%s", model.chosen_kernels)


def _is_alone(model: LoadedModel) -> bool:
    """Return True if it may have kernels: several ranks would have to agree on their timings."""
    parallel = model.parallel
    return parallel.layer_mates.size == 1 and parallel.link.num_stages == 1


def _use_kernels(
    model: LoadedModel, found: FoundKernels | None, checks: ModelChecks | None, storage: KVStorage
) -> None:
    """Use kernels for all parts of a step that are correct and faster with them; none if the whole model's results then
    differ. Attention has none if kernels cannot read the format of the cache.
    """
    if found is None or model.is_invariant or not _is_alone(model):
        return
    from tenonry_worker_torch.fuse.kernels.use import UsedKernels
    from tenonry_worker_torch.fuse.kernels.use_packed import UsedPacked
    from tenonry_worker_torch.fuse.linear import is_half_on_host

    used: UsedKernels | UsedPacked | None = None
    agrees = None if checks is None else checks.still_agrees
    if model.dtype == torch.float32:
        used = UsedKernels(found)
        used.give(
            model.forward,
            model.mixers,
            has_adapters=model.adapters is not None,
            reads_cache=storage.is_exact,
        )
        if checks is not None and model.quantisation is None:
            agrees = checks.agrees  # when quantised, the model's own code has lost its weights
    elif is_half_on_host(model.dtype, model.device):
        used = UsedPacked(found)
        reads_cache = storage.is_exact or storage.name in found.kernels.kept
        used.give(model.forward, model.backend, reads_cache=reads_cache)
    few_bits = model.few_bits
    parts = [part for part in (used, few_bits) if part is not None]
    if any(part.counts for part in parts) and agrees is not None and not agrees(model.forward):
        if used is not None:
            used.take_back()
        if few_bits is not None and isinstance(model.forward, LeanForward):
            few_bits.take_back(model.forward)
        logger.warning("%s differs with step kernels %s", type(model.module).__name__, found.text)
    dtype = str(model.dtype)[6:]
    texts = [f"Step kernels {found.text} do not compute in {dtype} here: torch does"]
    if used is not None:
        texts = [used.text]
    if few_bits is not None:
        texts.append(few_bits.text)
    model.chosen_kernels = "; ".join(texts)
    if used is None or any(part.counts or part.left for part in parts):
        logger.info("%s", model.chosen_kernels)
