"""The worker `pooling`: vectors and scores of whole prompts, by the runner of the worker `torch`, on the CPU or on one
CUDA device. Runs in the process the executor chose. This module is light; torch and transformers are imported by
`load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry.errors import ConfigError
from tenonry.kv_cache import KVCacheGroup, MemoryReport
from tenonry_torch_base.imports import importing
from tenonry_torch_base.settings import WorkerSettings
from tenonry_torch_base.waiting import wait_briefly
from tenonry_worker_torch.pooling.options import PoolingOptions
from tenonry_worker_torch.runner_worker import RunnerWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import BaseModel

    from tenonry.info import ModelInfo, WorkerFacts
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.kv_cache import KVCacheConfig
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.pooling.outline import Outline


class PoolingWorker(RunnerWorker):
    """Vectors and scores of whole prompts, by models of transformers. It stores no K/V: its one group is opaque."""

    Options = PoolingOptions
    Settings = WorkerSettings
    capabilities: ClassVar[frozenset[str]] = frozenset({"pooling", "profile", "tasks"})
    rpc_methods: ClassVar[frozenset[str]] = frozenset({"profile", "tasks"})

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, PoolingOptions) else PoolingOptions()
        self._found: Outline | None = None
        self._model: LoadedModel | None = None

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        wait_briefly(model.path)
        with importing():
            import tenonry_worker_torch.load_pooling
            import tenonry_worker_torch.runner.assemble  # noqa: F401
            from tenonry_worker_torch.pooling.outline import outline

            outline(model.path, needs_weights=False, mode=getattr(options, "pooling", None))

    @property
    def found(self) -> Outline:
        """The model's outline; asking before `load` is a mistake of the caller."""
        if self._found is None:
            raise RuntimeError("worker 'pooling' has no model: load() comes first")
        return self._found

    def _look(self, *, needs_weights: bool) -> Outline:
        from tenonry_worker_torch.pooling.outline import outline

        is_dummy = self.context.config.load_format == "dummy"
        return outline(
            self.context.model.path,
            needs_weights=needs_weights and not is_dummy,
            mode=self.options.pooling,
        )

    def examine(self) -> WorkerFacts:
        with importing():
            from tenonry_hf_hub import holds_weights
            from tenonry_torch_base.one_rank import one_rank_facts

            found = self._look(needs_weights=holds_weights(self.context.model.path))
        return one_rank_facts(
            "pooling",
            found.architecture,
            found.whole,
            found.checkpoint,
            self.context,
            tasks=found.tasks,
            pooling="+".join(found.modes),
        )

    def load(self) -> None:
        config = self.context.config
        if config.enable_expert_parallel:
            raise ConfigError(
                "enable_expert_parallel: worker 'pooling' keeps all experts of a layer in one engine; leave it out"
            )
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            size = getattr(config, name)
            if size > 1:
                raise ConfigError(
                    f"{name}={size}, but worker 'pooling' runs a model on one rank; use {name}=1"
                )
        with importing():
            from tenonry_worker_torch.load_pooling import load_pooling

            found = self._found = self._look(needs_weights=True)
        self._model = load_pooling(found, self.context, self.options, self.resolved)

    def tasks(self) -> dict[str, int]:
        """`EngineInfo.tasks` of the loaded model."""
        return self.found.tasks

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return [KVCacheGroup(layers=("pooling",), kind="opaque", bytes_per_token=0, state_bytes=0)]

    def available_memory(self) -> MemoryReport:
        from tenonry_torch_base.memory import host_memory

        return MemoryReport(host_memory(), is_host=True)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        from tenonry_torch_base.points import resolve
        from tenonry_worker_torch.points import RUNNER_FEATURES
        from tenonry_worker_torch.runner.assemble import assemble_runner

        if self._model is None:
            raise RuntimeError("worker 'pooling' has no model: load() comes first")
        config = self.context.config
        consent = config.allow_experimental_plugins
        runner = assemble_runner(
            self._model,
            max_num_seqs=config.max_num_seqs,
            max_model_len=kv_cache.max_model_len,
            num_blocks=kv_cache.num_blocks,
            block_size=kv_cache.block_size,
            features=[
                resolve(RUNNER_FEATURES, name, self.resolved, allow_experimental=consent)
                for name in self.options.runner_features
            ],
        )
        self.run_steps(runner)

    def shutdown(self) -> None:
        super().shutdown()
        self._model = None
        self._found = None
