"""The worker `transformers`: any model that `generate` can run on text, on the CPU or on one CUDA device.

Runs in the process the executor chose.

This module is light; torch and transformers are imported by `load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tenonry.errors import ConfigError
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheGroup, MemoryReport
from tenonry_torch_base.imports import importing
from tenonry_torch_base.phases import Phases
from tenonry_torch_base.settings import WorkerSettings
from tenonry_torch_base.waiting import wait_briefly
from tenonry_worker_transformers.options import TransformersOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from tenonry.info import ModelInfo, WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
    from tenonry_worker_transformers.loaded_model import LoadedModel
    from tenonry_worker_transformers.model_runner import ModelRunner


class TransformersWorker(Worker):
    """Runs models supported by transformers' `generate`, by their own code. Steps in flight: one on the CPU, two on
    CUDA.
    """

    Options = TransformersOptions
    Settings = WorkerSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"grammar"})
    rpc_methods: ClassVar[frozenset[str]] = frozenset({"load_phases", "model_facts"})

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        wait_briefly(context.model.path)
        self.options = (
            context.options
            if isinstance(context.options, TransformersOptions)
            else TransformersOptions()
        )
        self._phases = Phases()
        self._model: LoadedModel | None = None
        self._runner: ModelRunner | None = None
        self._resolved: dict[str, str] = {}
        self._known: WorkerFacts | None = None

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        wait_briefly(model.path)
        with importing():
            import tenonry_worker_transformers.startup  # noqa: F401
            from tenonry_torch_base.weights import import_class

            import_class(model.path, model.architecture)

    @property
    def model(self) -> LoadedModel:
        """The loaded model; asking before `load` is a mistake of the caller."""
        if self._model is None:
            raise RuntimeError("worker 'transformers' has no model: load() comes first")
        return self._model

    @property
    def runner(self) -> ModelRunner:
        """The model runner; exists from `initialize_cache` on."""
        if self._runner is None:
            raise RuntimeError(
                "worker 'transformers' has no runner: initialize_cache() comes first"
            )
        return self._runner

    @property
    def steps_in_flight(self) -> int:
        return 2 if self._model is not None and self._model.device.type == "cuda" else 1

    def examine(self) -> WorkerFacts:
        with importing():
            from tenonry_worker_transformers.startup import facts

            return facts(self.context)

    def load(self) -> None:
        with importing():
            from tenonry_worker_transformers.startup import load

        self._refuse_settings()
        self._model, self._resolved, self._known = load(self.context, self.options, self._phases)

    def load_phases(self) -> dict[str, tuple[float, float]]:
        """Durations of `load`: phase → seconds on the clock and CPU seconds of this process."""
        return dict(self._phases.seconds)

    def model_facts(self) -> dict[str, Any]:
        """Facts of the loaded model, as plain values of `WorkerFacts`."""
        if self._known is None:
            raise RuntimeError("worker 'transformers' has no model: load() comes first")
        facts = msgspec.structs.replace(self._known, groups=tuple(self.kv_cache_groups()))
        found: dict[str, Any] = msgspec.to_builtins(facts)
        return found

    def _refuse_settings(self) -> None:
        config = self.context.config
        if config.enable_expert_parallel:
            raise ConfigError(
                "enable_expert_parallel: worker 'transformers' keeps all experts of a layer in one engine; leave it "
                "out, or use --worker torch with a model that it serves"
            )
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            size = getattr(config, name)
            if size > 1:
                raise ConfigError(
                    f"{name}={size}, but worker 'transformers' runs a model on one rank; use {name}=1, or "
                    "--worker torch with a model that it serves"
                )

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        checked = self.model.checked
        return [
            KVCacheGroup(
                layers=("generate",),
                kind="opaque",
                bytes_per_token=checked.bytes_per_token,
                state_bytes=checked.state_bytes,
            )
        ]

    def available_memory(self) -> MemoryReport:
        from tenonry_torch_base.memory import free_device_memory, host_memory
        from tenonry_worker_transformers.pieces import pool_bytes

        device = self.model.device
        if device.type == "cpu":
            return MemoryReport(host_memory(), is_host=True)
        config = self.context.config
        longest = self.context.max_model_len
        if self.model.checked.chunks:
            longest = min(longest, config.step_token_budget)
        needed = self.model.step_bytes(longest)
        free = free_device_memory(device, config.gpu_memory_utilization, needed)
        return MemoryReport(pool_bytes(self.model.checked.batching, free))

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        from tenonry_worker_transformers.startup import make_runner

        self._runner = make_runner(self.model, self.context, self.options, kv_cache, self._resolved)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        return self.runner.execute(output)

    def resolved_plugins(self) -> dict[str, str]:
        return dict(self._resolved)

    def shutdown(self) -> None:
        if self._runner is not None:
            self._runner.sampler.shutdown()
        self._runner = None
        self._model = None
