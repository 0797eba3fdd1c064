"""Loads the model of a rank, at the start and again. Worker process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_torch_base.attention.default import slower_backend
from tenonry_torch_base.device import choose_device, prepare_device
from tenonry_torch_base.memory import fitting
from tenonry_torch_base.parallel.groups import alone
from tenonry_torch_base.phases import Phases
from tenonry_torch_base.points import (
    ATTENTION_BACKENDS,
    BUFFERS,
    DEFAULT_BUFFERS,
    resolve,
    resolve_class,
)
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.adapters.registry import Adapters
from tenonry_worker_torch.adapters.targets import LoraTargets
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.images.check import ImageCheck
from tenonry_worker_torch.invariance import NotInvariantError
from tenonry_worker_torch.invariant_settings import require_kernels
from tenonry_worker_torch.loading.load import load_model
from tenonry_worker_torch.loading.quantised import computes
from tenonry_worker_torch.loading.stored import kernels_for, reads_weights
from tenonry_worker_torch.points import MODEL_PASSES
from tenonry_worker_torch.startup import backend_class, window_groups
from tenonry_worker_torch.step_kernels import find_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from tenonry.interfaces.worker import WorkerContext
    from tenonry_torch_base.parallel.groups import Rendezvous
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.options import TorchOptions

logger = logging.getLogger("tenonry.worker")


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
        consent = config.allow_experimental_plugins
        self._buffers = resolve_class(BUFFERS, buffers, self.resolved, allow_experimental=consent)
        self._kernels = None
        if options.fuse and not torch_settings(config).enforce_eager:
            self._kernels = find_kernels(
                options.step_kernels, self.device, self.resolved, allow_experimental=consent
            )
        if torch_settings(config).batch_invariant:
            require_kernels(self._kernels)
        has_kernels = self._kernels is not None and self._kernels.kernels.invariant() is not None
        prepare_device(self.device, options)
        self._serve_invariant(is_invariant and has_kernels)
        self._passes = tuple(
            resolve(MODEL_PASSES, name, self.resolved, allow_experimental=consent)
            for name in options.model_passes
        )
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
        """Load the model from its files, fused and checked. `found`: result of `look`. Raises ModelError, or
        ConfigError without enough memory.
        """
        with fitting(self.device):
            return self._load(found)

    def _load(self, found: CheckpointInfo) -> LoadedModel:
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
            kernels=None if self._passes else kernels_for(self._kernels, config),
            keeps_matrices=self._keeps_matrices,
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
            logger.info("Batch invariance disabled: %s", error)
            self._serve_invariant(False)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - kernels that cannot be compiled fail in many ways
            self._backend = slower_backend(self._backend, error, self._context, self.resolved)
        del module  # before the weights are read again
        with self._phases.of("weights"):
            module = make()
        return self._built(found, module)

    @property
    def _keeps_matrices(self) -> bool:
        """True if the pass `quantisation` packs matrices of a checkpoint, and nothing else reads weights."""
        settings = torch_settings(self._context.config)
        is_packed = self._options.fuse and not settings.enforce_eager and not self._passes
        return self.device.type == "cuda" and is_packed and not reads_weights(self._context.config)

    def reload(
        self, found: CheckpointInfo, make: Callable[[str, torch.device], PreTrainedModel]
    ) -> LoadedModel:
        """Rebuild from existing weights, in the same way as at the start; `make` receives data type and device."""
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
        settings = torch_settings(self._context.config)
        self._num_loads = max(self._num_loads, 1)
        adapters = self._adapters_of(found, module)
        with self._phases.of("check"):
            model = build(module, self._plan(found, module, adapters))
        if adapters is not None and self.adapters is None:
            adapters.add_all(settings.lora_modules)
            self.adapters = adapters
        elif adapters is not None:
            adapters.check()
        if self._context.rank == 0:
            logger.info("Loaded %s, in seconds: %s", found.architecture, self._phases.text)
        return model

    def _adapters_of(self, found: CheckpointInfo, module: PreTrainedModel) -> Adapters | None:
        """Return adapters bound to a model; later models share those of the first one."""
        config = self._context.config
        if not config.max_loras:
            return self.adapters
        targets = LoraTargets(found.whole, module)
        adapters = self.adapters
        if adapters is None:
            adapters = Adapters(
                targets,
                config.max_loras,
                torch_settings(config).max_lora_rank,
                self._options.max_cpu_loras,
                config.served_model_name or (config.model,),
            )
        adapters.bind(targets)
        return adapters

    def _plan(
        self, found: CheckpointInfo, module: PreTrainedModel, adapters: Adapters | None
    ) -> BuildPlan:
        config = self._context.config
        settings = torch_settings(config)
        steps = 2 if self.device.type == "cuda" else 1
        return BuildPlan(
            self._backend,
            self._buffers(self.device, steps),
            max_model_len=self._context.max_model_len,
            fuse=self._options.fuse and not settings.enforce_eager,
            skip_check=settings.skip_model_check,
            window_groups=window_groups(config, self._options),
            parallel=self.parallel,
            phases=self._phases,
            adapters=adapters,
            image_check=ImageCheck(self._context.model.path) if config.max_images else None,
            kernels=self._kernels,
            quantisation=computes(found.quantised, self.device, module.dtype),
            invariant=self._is_invariant,
            kv_cache_dtype=settings.kv_cache_dtype,
            passes=self._passes,
        )
