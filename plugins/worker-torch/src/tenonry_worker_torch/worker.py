"""The worker `torch`: a model, or one rank's part of it, on the CPU or on one CUDA device. Runs in the process the
executor chose; several ranks of one engine are in a process each.

This module is light; torch and transformers are imported by `load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tenonry.errors import ConfigError
from tenonry.gpus import visible_devices
from tenonry.kv_cache import MemoryReport
from tenonry_torch_base.imports import importing
from tenonry_torch_base.phases import Phases
from tenonry_torch_base.settings import TorchSettings
from tenonry_torch_base.waiting import wait_briefly
from tenonry_worker_torch.options import TorchOptions
from tenonry_worker_torch.runner_worker import RunnerWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from tenonry.info import ModelInfo, WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
    from tenonry_torch_base.parallel.groups import Rendezvous
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.residency.residency import Residency


class TorchWorker(RunnerWorker):
    """Causal language models of transformers over K/V in blocks. One step is in flight on the CPU, two on CUDA.

    The kernels of a model are chosen by measurements when it is loaded, for each matrix shape, with a maximum number of
    rows. The choice is logged (`Step kernels …`), and `collective_rpc("chosen_kernels")` of a running engine returns
    it.
    """

    Options = TorchOptions
    Settings = TorchSettings
    capabilities: ClassVar[frozenset[str]] = frozenset(
        {
            "attention_backend",
            "batch_invariant",
            "drafts",
            "dummy_batch",
            "grammar",
            "kv_cache_dtype",
            "kv_connector",
            "lora",
            "media",
            "profile",
            "quantization",
            "rounds",
            "save",
            "sleep",
            "weights",
        }
    )
    rpc_methods: ClassVar[frozenset[str]] = frozenset(
        {
            "add_lora",
            "check_update",
            "chosen_kernels",
            "execute_dummy_batch",
            "is_sleeping",
            "list_loras",
            "load_phases",
            "model_facts",
            "pin_lora",
            "profile",
            "remove_lora",
            "save_sharded_state",
            "reset_mm_cache",
            "sleep",
            "update_weights",
            "wake_up",
        }
    )

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self.options = (
            context.options if isinstance(context.options, TorchOptions) else TorchOptions()
        )
        self._phases = Phases()
        self._found: CheckpointInfo | None = None
        self._known: WorkerFacts | None = None
        self._residency: Residency | None = None
        self._opened: tuple[Any, str] | None = None
        self._rendezvous: Rendezvous | None = None

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        wait_briefly(model.path)
        with importing():
            import tenonry_worker_torch.loader
            import tenonry_worker_torch.residency.residency
            import tenonry_worker_torch.start_runner  # noqa: F401
            from tenonry_torch_base.weights import import_class
            from tenonry_worker_torch.passes.order import device_passes

            import_class(model.path, model.architecture)
            for each in device_passes("cuda") if visible_devices() else ():
                each.preload()

    @property
    def model(self) -> LoadedModel:
        """The loaded model; asking before `load` is a mistake of the caller."""
        return self.residency.model

    @property
    def residency(self) -> Residency:
        """Location of weights and KV cache; exists from `load` on."""
        if self._residency is None:
            raise RuntimeError("worker 'torch' has no model: load() comes first")
        return self._residency

    @property
    def steps_in_flight(self) -> int:
        return 2 if self._residency is not None and self.model.device.type == "cuda" else 1

    def open_rendezvous(self, host: str) -> str:
        with importing():
            from tenonry_torch_base.parallel.groups import open_store

        config = self.context.config
        self._opened = open_store(host, config.world_size, config.start_timeout)
        return self._opened[1]

    def examine(self) -> WorkerFacts:
        with importing():
            from tenonry_worker_torch.startup import facts

            return facts(self.context, self._look(needs_weights=False))

    def _look(self, *, needs_weights: bool = True) -> CheckpointInfo:
        """Return the model before its weights, examined once; `load` reuses it, unless weights were missing."""
        if self._found is None:
            from tenonry_worker_torch.startup import looked

            with self._phases.of("look"):
                found, known = looked(self.context, needs_weights=needs_weights)
            if found.is_bare:
                return found
            self._found, self._known = found, known
        return self._found

    def _look_or_name_another(self) -> CheckpointInfo:
        """As `_look`. If a user selected this worker by name, the error names a possible alternative."""
        from tenonry_worker_torch.loading.refusals import CannotRun

        config = self.context.config
        try:
            return self._look()
        except CannotRun as error:
            if config.worker.name != "torch":
                raise
            remedy = "--worker transformers runs what `generate` of transformers can"
            if config.world_size > 1:
                remedy += ", with tensor_parallel_size=1 and pipeline_parallel_size=1"
            raise CannotRun(f"{error}; {remedy}") from error

    def load_phases(self) -> dict[str, tuple[float, float]]:
        """Durations of `load`: phase → seconds on the clock and CPU seconds of this process."""
        return dict(self._phases.seconds)

    def chosen_kernels(self) -> str:
        """Parts of the loaded model computed by step kernels, and their maximum number of rows; torch computes the
        others.
        """
        return self.model.chosen_kernels

    def model_facts(self) -> dict[str, Any]:
        """Facts of the loaded model, as plain values of `WorkerFacts`; the groups are this rank's."""
        from tenonry_worker_torch.loading.examine import with_groups

        if self._known is None:
            raise RuntimeError("worker 'torch' has no model: load() comes first")
        facts = with_groups(self._known, self.kv_cache_groups(), self.context.config)
        found: dict[str, Any] = msgspec.to_builtins(facts)
        return found

    def load(self) -> None:
        with importing():
            from tenonry_torch_base.memory import return_freed_memory, skipping_old_objects
            from tenonry_torch_base.parallel.groups import Rendezvous
            from tenonry_worker_torch.loader import Loader
            from tenonry_worker_torch.residency.residency import Residency

            found = self._look_or_name_another()
        config = self.context.config
        if config.world_size > 1 or config.enable_expert_parallel:
            self._rendezvous = Rendezvous(self.context, self._opened)
        self._found = None
        loader = Loader(
            self.context,
            self.options,
            self._rendezvous,
            self._phases,
            is_invariant=found.is_invariant,
        )
        self.resolved = loader.resolved
        with skipping_old_objects():
            self._residency = Residency(loader, found)
            if self.model.quantisation is not None:  # the floats are gone
                return_freed_memory(skip_frozen=True)

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        from tenonry_worker_torch.kv_groups import kv_groups

        model = self.model
        specs = [layer.spec for layer in model.layers.values()]
        return kv_groups(
            specs, model.backend.storage, model.backend, model.states, model.groups, model.lengths
        )

    def available_memory(self) -> MemoryReport:
        from tenonry_torch_base.memory import host_memory
        from tenonry_worker_torch.device_memory import device_memory

        if self.model.device.type == "cpu":
            # Main memory is shared by the ranks of a node.
            return MemoryReport(host_memory() // self.context.config.world_size, is_host=True)
        config = self.context.config
        return MemoryReport(
            device_memory(
                self.model,
                config.step_token_budget,
                config.gpu_memory_utilization,
                config.max_num_seqs,
            )
        )

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        from tenonry_worker_torch.start_runner import make_runner

        runner = make_runner(self.model, self.context, self.options, kv_cache, self.resolved)
        connected = None
        if self.context.kv_connector is not None:
            from tenonry_worker_torch.connector import ConnectedSteps

            connected = ConnectedSteps(self.context, kv_cache, runner)
        self.run_steps(runner, connected)
        self.residency.serve(runner)

    def warm_up(self) -> None:
        from tenonry_worker_torch.start_runner import warm_up

        warm_up(self.runner)
        if self.model.device.type == "cpu":
            from tenonry_torch_base.cpu_affinity import CpuAffinity

            self.runner.forward_pass.affinity = affinity = CpuAffinity()
            affinity.take()

    def execute_dummy_batch(self) -> None:
        """Compute without a request, so that ranks of other engines that share layers with this one can continue."""
        self.runner.forward_pass.dummy()

    def add_lora(self, name: str, path: str) -> bool:
        """Load the adapter in a peft folder. On failure nothing changes; raises ModelError with the reason."""
        return self._adapters.add(name, path)

    def remove_lora(self, name: str) -> bool:
        """Remove an adapter; running rows keep it. Raises RequestError for an unknown one."""
        return self._adapters.remove(name)

    def list_loras(self) -> list[str]:
        """`name@digest` of each."""
        return self._adapters.names()

    def pin_lora(self, name: str) -> bool:
        """Pin an adapter: its slot is evicted last. Raises RequestError if it is not loaded."""
        return self._adapters.pin(name)

    @property
    def _adapters(self) -> Adapters:
        found = self.residency.adapters
        if found is None:
            raise ConfigError(
                "max_loras=0: no adapters are served; start with --max-loras and a number"
            )
        return found

    def sleep(self, level: int = 1) -> None:
        """Free memory: level 1 the KV cache (weights move to main memory), level 2 the weights as well."""
        self.residency.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Reallocate memory for "weights", "kv_cache", or both."""
        self.residency.wake_up(tags)

    def is_sleeping(self) -> bool:
        """True if weights or KV cache are not in memory."""
        return self.residency.is_sleeping

    def check_update(self, source: str, names: list[str] | None = None) -> None:
        """Raise ModelError when `update_weights` would fail, as far as headers show. Nothing changes."""
        self.residency.check_update(source, names)

    def update_weights(self, source: str, names: list[str] | None = None) -> None:
        """Replace weights by those of a safetensors file, a folder, or shared memory (`shm:NAME`). All K/V are lost.

        When it raises, no step may follow until an update succeeds.
        """
        self.residency.update(source, names)

    def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write this rank's weights, under the checkpoint's names, for `load_format=sharded`.

        `pattern`: of file names, with {rank} and {part}; `max_size`: bytes of a file.
        """
        self.residency.save(self.context.model.path, path, pattern, max_size)

    def reset_mm_cache(self) -> None:
        """Encode images anew that prompts hold again."""
        if self.model.images is not None:
            self.model.images.encoded.clear()

    def shutdown(self) -> None:
        was_loaded = was_frozen = False
        if self._residency is not None:
            from tenonry_torch_base.memory import is_frozen
            from tenonry_torch_base.traces import flush_tuning

            flush_tuning()
            was_loaded, was_frozen = True, is_frozen(self._residency)
        super().shutdown()
        self._residency = self._found = None
        if self._rendezvous is not None:
            self._rendezvous.leave()
        self._rendezvous = self._opened = None
        if was_loaded:
            from tenonry_torch_base.memory import return_freed_memory

            # The model is garbage in cycles, in an engine process among objects that were frozen.
            return_freed_memory(skip_frozen=not was_frozen)
