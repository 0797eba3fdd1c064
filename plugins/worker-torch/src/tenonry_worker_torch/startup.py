"""One-time start of a worker: resolve its own extension points, load, build the runner, warm up. Worker process."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tenonry.errors import ModelError
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow, SchedulerOutput
from tenonry_hf_hub import holds_weights
from tenonry_torch_base.device import choose_device, choose_dtype, prepare_device
from tenonry_torch_base.grammars import open_grammars
from tenonry_torch_base.phases import Phases
from tenonry_torch_base.points import (
    BUFFERS,
    DEFAULT_BUFFERS,
    LOGITS_PROCESSORS,
    resolve,
    resolve_class,
)
from tenonry_torch_base.sampler.grammar import GrammarMasks
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.adapters.registry import Adapters
from tenonry_worker_torch.adapters.targets import LoraTargets
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.compatibility import OWN, of_packages
from tenonry_worker_torch.conflicts import Setup, refuse_conflicts
from tenonry_worker_torch.drafting.start import most_drafts, open_drafter
from tenonry_worker_torch.images.check import ImageCheck
from tenonry_worker_torch.invariance import NotInvariantError
from tenonry_worker_torch.invariant_settings import BACKEND, require_kernels, serves_invariant
from tenonry_worker_torch.kv_groups import GroupLayout, kept_text
from tenonry_worker_torch.loading.examine import examine, known_facts
from tenonry_worker_torch.loading.load import load_model, look
from tenonry_worker_torch.loading.quantised import computes
from tenonry_worker_torch.parallel.experts import check_experts, check_settings
from tenonry_worker_torch.parallel.groups import alone
from tenonry_worker_torch.points import (
    ATTENTION_BACKENDS,
    MODEL_PASSES,
    RUNNER_FEATURES,
    default_backend,
)
from tenonry_worker_torch.runner.assemble import assemble_runner
from tenonry_worker_torch.setting_checks import check_adapters, check_quantisation
from tenonry_worker_torch.step_kernels import find_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from tenonry.config import EngineConfig
    from tenonry.info import WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry_worker_torch.attention.base import AttentionBackend
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.options import TorchOptions
    from tenonry_worker_torch.parallel.groups import Rendezvous
    from tenonry_worker_torch.runner.runner import ModelRunner
    from tenonry_worker_torch.state.states import States

logger = logging.getLogger("tenonry.worker")

WARM_UP_TOKENS = 8
MIB = 1 << 20


def backend_class(
    config: EngineConfig, device: torch.device, resolved: dict[str, str], *, is_invariant: bool
) -> type[AttentionBackend]:
    """The configured attention backend, or the device's default. Raises PluginError with the installed names."""
    name = BACKEND if is_invariant else torch_settings(config).attention_backend
    found: type[AttentionBackend] = resolve_class(
        ATTENTION_BACKENDS, name or default_backend(device.type), resolved
    )
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
    parts = [*OWN, *of_packages(context.options)]
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
    """Add the facts of the model, by which conflicts are found."""
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
    """All facts of the model that are known without its weights. Raises ModelError or ConfigError as `load` would."""
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
    """Return True if layers with a window are in groups of their own.

    Not in a pipeline: its stages have different numbers of layers of each kind, and one block table for all stages.
    """
    return config.pipeline_parallel_size == 1 and getattr(options, "sliding_window_groups", True)


class Loader:
    """Makes the model of this rank: at the start, and again when its weights are restored or replaced.

    `resolved`: names of the resolved extension points. `rendezvous`: of several ranks. `adapters`: of all models that
    it makes, from the first one on. `is_invariant`: served with batch invariance; if not configured, the first model
    decides.
    """

    def __init__(
        self,
        context: WorkerContext,
        options: TorchOptions,
        rendezvous: Rendezvous | None,
        phases: Phases,
        *,
        is_invariant: bool = False,
    ) -> None:
        config = context.config
        self._context = context
        self._options = options
        self._rendezvous = rendezvous
        self._phases = phases
        self._num_loads = 0
        self.adapters: Adapters | None = None
        self.resolved: dict[str, str] = {}
        self.device = choose_device(config.device, context.local_rank, config.world_size)
        buffers = options.buffers or DEFAULT_BUFFERS[self.device.type]
        self._buffers = resolve_class(BUFFERS, buffers, self.resolved)
        self._kernels = None
        if options.fuse and not torch_settings(config).enforce_eager:
            self._kernels = find_kernels(options.step_kernels, self.device, self.resolved)
        if torch_settings(config).batch_invariant:
            require_kernels(self._kernels)
        has_kernels = self._kernels is not None and self._kernels.kernels.invariant() is not None
        self._serve_invariant(is_invariant and has_kernels)
        self._passes = [resolve(MODEL_PASSES, name, self.resolved) for name in options.model_passes]
        prepare_device(self.device, options)
        self.parallel = alone()
        if rendezvous is not None:
            self.parallel = rendezvous.join(context, self.device)

    def _serve_invariant(self, is_invariant: bool) -> None:
        self._is_invariant = is_invariant
        self.resolved.pop(ATTENTION_BACKENDS.kind, None)
        self._backend = backend_class(
            self._context.config, self.device, self.resolved, is_invariant=is_invariant
        )

    def load(self, found: CheckpointInfo) -> LoadedModel:
        """Load the model from its files, fused and checked. `found`: result of `look`. Raises ModelError."""
        config = self._context.config
        if found.quantised is not None:
            self.resolved |= found.quantised.origin
        make = partial(
            load_model,
            self._context.model.path,
            load_format=config.load_format,
            dtype=config.dtype,
            device=self.device,
            seed=config.seed,
            parallel=self.parallel,
            found=found,
        )
        if self._num_loads:
            return self._again(found, make)
        if found.checkpoint is not None and self._context.rank == 0:
            found.checkpoint.log()
        with self._phases.of("weights"):
            module = make()
        if self._rendezvous is not None:
            self._rendezvous.wait_for_all("loaded")
        try:
            return self._built(found, module)
        except NotInvariantError as error:
            if torch_settings(config).batch_invariant:
                raise
            logger.info("Served without the promise of batch invariance: %s", error)
        del module  # before the weights are read once more
        self._serve_invariant(False)
        with self._phases.of("weights"):
            module = make()
        return self._built(found, module)

    def reload(
        self, found: CheckpointInfo, make: Callable[[str, torch.device], PreTrainedModel]
    ) -> LoadedModel:
        """From weights that are at hand, and in the same way as at the start; `make` is given data type and device."""
        return self._again(found, partial(make, self._context.config.dtype, self.device))

    def _again(self, found: CheckpointInfo, make: Callable[[], PreTrainedModel]) -> LoadedModel:
        """Rebuild on all ranks or on none, since layers that span ranks are checked together."""
        failure: Exception | None = None
        module: PreTrainedModel | None = None
        self._phases = Phases()
        try:
            with self._phases.of("weights"):
                module = make()
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        where = f"loaded again {self._num_loads}"
        self._num_loads += 1
        if self._rendezvous is not None and not self._rendezvous.all_agree(where, failure is None):
            raise failure or ModelError("another rank could not read its part of the weights")
        if module is None:
            raise failure or ModelError("no weights were read")
        return self._built(found, module)

    def _built(self, found: CheckpointInfo, module: PreTrainedModel) -> LoadedModel:
        config = self._context.config
        steps = 2 if self.device.type == "cuda" else 1
        self._num_loads = max(self._num_loads, 1)
        phases = self._phases
        adapters = self.adapters
        if config.max_loras:
            targets = LoraTargets(found.whole, module)
            if adapters is None:
                adapters = Adapters(
                    targets,
                    config.max_loras,
                    torch_settings(config).max_lora_rank,
                    self._options.max_cpu_loras,
                    config.served_model_name or (config.model,),
                )
            adapters.bind(targets)
        with phases.of("check"):
            model = build(
                module,
                self._backend,
                self._buffers(self.device, steps),
                max_model_len=self._context.max_model_len,
                fuse=self._options.fuse and not torch_settings(config).enforce_eager,
                skip_check=torch_settings(config).skip_model_check,
                window_groups=window_groups(config, self._options),
                parallel=self.parallel,
                phases=phases,
                adapters=adapters,
                image_check=ImageCheck(self._context.model.path) if config.max_images else None,
                kernels=self._kernels,
                quantisation=computes(found.quantised, self.device, module.dtype),
                invariant=self._is_invariant,
                kv_cache_dtype=torch_settings(config).kv_cache_dtype,
                passes=self._passes,
            )
        if adapters is not None and self.adapters is None:
            adapters.add_all(torch_settings(config).lora_modules)
            self.adapters = adapters
        elif adapters is not None:
            adapters.check()
        if self._context.rank == 0:
            logger.info("Loaded %s, in seconds: %s", found.architecture, phases.text)
        return model


def make_runner(
    model: LoadedModel,
    context: WorkerContext,
    options: TorchOptions,
    kv_cache: KVCacheConfig,
    resolved: dict[str, str],
) -> ModelRunner:
    """The runner over a cache of the decided size."""
    if model.states is not None and context.rank == 0:
        logger.info("%s", state_memory(model.states, context.config.max_num_seqs))
    if not model.backend.storage.is_exact and context.rank == 0:
        specs = [layer.spec for layer in model.layers.values()]
        logger.info("%s", kept_text(specs, model.backend.storage))
    processors: list[Any] = [
        resolve_class(LOGITS_PROCESSORS, name, resolved) for name in options.logits_processors
    ]
    if model.parallel.link.is_last and model.parallel.tensor.rank == 0:  # the rank that samples
        store = open_grammars(context, model.vocab_size, resolved)
        processors.append(partial(GrammarMasks, store=store, kernel=model.best_allowed))
    runner = assemble_runner(
        model,
        max_num_seqs=context.config.max_num_seqs,
        max_model_len=kv_cache.max_model_len,  # the model's own may be millions, and the columns are as wide
        num_blocks=kv_cache.num_blocks,
        block_size=kv_cache.block_size,
        groups=GroupLayout(len(kv_cache.groups), kv_cache.num_state_slots),
        seed=context.config.seed,
        processors=processors,
        features=[resolve(RUNNER_FEATURES, name, resolved) for name in options.runner_features],
    )
    if torch_settings(context.config).drafter is not None:
        drafter = open_drafter(
            context,
            torch_settings(context.config).drafter,
            model,
            lambda: runner.forward_pass.affinity,
            kv_cache.max_model_len,
            resolved,
        )
        runner.draft(drafter, most_drafts(context.config))
    return runner


def state_memory(states: States, max_num_seqs: int) -> str:
    """Size of the states of running sequences, and the setting that changes it."""
    each = states.row_bytes
    how = "taken as sequences run" if states.device.type == "cpu" else "set aside"
    return (
        f"State of sequences: {each / MIB:.3g} MiB each, at most {max_num_seqs * each / MIB:.4g} MiB, {how}; "
        f"--max-num-seqs, now {max_num_seqs}, lowers it"
    )


def warm_up(runner: ModelRunner) -> None:
    """One prompt and one further token through row 0, over blocks that no request has yet; then the row leaves."""
    length = min(WARM_UP_TOKENS, runner.state.token_ids.shape[1] - 2)
    if length < 1:
        return
    wanted = -(-(length + 1) // runner.state.block_size)
    blocks = min(wanted, runner.state.block_table[0].shape[1])
    entering = NewRow(
        row=0,
        handle=1,
        token_ids=np.zeros(length, np.int32),
        num_computed=0,
        num_output=0,
        block_ids=(np.arange(blocks, dtype=np.int32),) * runner.model.backend.num_groups,
        sampling=SamplingParams(temperature=0.0),
    )
    # Where stages do not feed tokens back, the step brings the token, as in serving.
    feeds_back = runner.model.parallel.link.num_stages == 1
    next_token = -1 if feeds_back else 0
    prefill = _step_of_row_0(0, [entering], length, -1)
    decode = _step_of_row_0(1, [], 1, next_token)
    leave = SchedulerOutput(step_id=2, gone=np.zeros(1, np.int32))
    for output in (prefill, decode, leave):
        runner.answer(output).result()


def _step_of_row_0(
    step_id: int, new: list[NewRow], num_tokens: int, next_token: int
) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=step_id,
        new=new,
        row=np.zeros(1, np.int32),
        num_tokens=np.full(1, num_tokens, np.int32),
        next_token=np.full(1, next_token, np.int32),
        samples=np.ones(1, np.bool_),
    )
