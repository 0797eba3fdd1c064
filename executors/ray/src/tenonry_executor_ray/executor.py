"""The executor `ray`: the ranks of one engine are Ray actors, on one node or several. Engine process; light module.

Every rank gets every step, in order; the results come from the first rank of the last pipeline stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenonry.errors import LaunchError, WireError
from tenonry.interfaces.executor import Executor, ExecutorContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry.transport.serial import Decoder, Encoder, to_plain
from tenonry_executor_ray.options import RayExecutorOptions
from tenonry_kvcache.rank_transfers import RankTransfers

if TYPE_CHECKING:
    from tenonry_executor_ray.ranks import Ranks

HEALTH_TIMEOUT_S = 25.0
RECENT_S = 3.0  # an answer of that age proves that the ranks are healthy


class RayExecutor(Executor):
    """Connects to the cluster when it starts. Raises ConfigError when the cluster has no room for the ranks."""

    Options = RayExecutorOptions
    is_local = False
    runs_elsewhere = True

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        if context.config.pipeline_parallel_size > 1:
            self.feeds_back_tokens = False  # the first stage never sees what the last one sampled
        self._ranks: Ranks | None = None
        world_size = context.config.world_size
        self._transfers: RankTransfers | None = None
        if context.kv_connector is not None and world_size > 1:
            self._transfers = RankTransfers(world_size)
        self._steps_in_flight = 1
        self._callback: Callable[[str], None] | None = None
        self._encoder = Encoder()
        self._decoder: Decoder[ModelRunnerOutput] = Decoder(ModelRunnerOutput)

    @property
    def ranks(self) -> Ranks:
        """The ranks; RuntimeError before `start` and after `shutdown`."""
        if self._ranks is None:
            raise RuntimeError("the ray executor is not started")
        return self._ranks

    @property
    def max_concurrent_batches(self) -> int:
        config = self.context.config
        if not config.async_scheduling:
            return 1
        return max(self._steps_in_flight, config.pipeline_parallel_size)

    def on_failure(self, callback: Callable[[str], None]) -> None:
        self._callback = callback

    def start(self) -> None:
        from tenonry_executor_ray.ranks import Ranks

        options = self.context.options
        if not isinstance(options, RayExecutorOptions):
            options = RayExecutorOptions()
        self._ranks = Ranks(self.context, options, self._failed)
        try:
            self._steps_in_flight = self._ranks.start()
        except TimeoutError as error:
            raise LaunchError(f"{error}; raise --start-timeout if loading is slow") from error

    def _failed(self, reason: str) -> None:
        if self._callback is not None:
            self._callback(reason)

    def kv_cache_groups(self) -> Sequence[Sequence[KVCacheGroup]]:
        return self.ranks.ask_all("kv_cache_groups", kind=list[KVCacheGroup])

    def available_memory(self) -> Sequence[MemoryReport]:
        return self.ranks.ask_all("available_memory", kind=MemoryReport)

    def initialize(self, kv_cache: KVCacheConfig) -> None:
        self.ranks.ask_all("initialize", kv_cache)

    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        calls = self.ranks.launch([bytes(frame) for frame in self._encoder.encode(output)])
        return RayStepFuture(self.ranks, self._decoder, calls, output, self._transfers)

    def call(
        self,
        method: str,
        args: Sequence[Any] = (),
        timeout: float | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As the interface; without `timeout` a call may take as long as a start. TimeoutError names late ranks."""
        call = (method, to_plain(list(args)), to_plain(dict(kwargs or {})))
        return self.ranks.ask_all("call", call, timeout)

    def check_health(self) -> None:
        """Raise the error of a rank, TimeoutError if one does not answer within 5 s, or EngineDeadError."""
        self.ranks.check_health(HEALTH_TIMEOUT_S, RECENT_S)

    def resolved_plugins(self) -> dict[str, str]:
        found: list[dict[str, str]] = self.ranks.ask_all("resolved_plugins", kind=dict[str, str])
        return found[0]

    def shutdown(self) -> None:
        ranks = self._ranks
        self._ranks = None
        if ranks is not None:
            ranks.close()


class RayStepFuture:
    """The result of one step, which the driver rank answers; with a KV connector the other ranks answer as well."""

    __slots__ = ("_calls", "_decoder", "_output", "_ranks", "_step", "_transfers")

    def __init__(
        self,
        ranks: Ranks,
        decoder: Decoder[ModelRunnerOutput],
        calls: dict[int, Any],
        step: SchedulerOutput,
        transfers: RankTransfers | None,
    ) -> None:
        self._ranks = ranks
        self._decoder = decoder
        self._calls = calls
        self._step = step
        self._transfers = transfers
        self._output: ModelRunnerOutput | None = None

    def done(self) -> bool:
        """Return True if `result` would return or raise without waiting."""
        return self._output is not None or self._ranks.is_done(self._calls)

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Wait for the output. Raises as `Ranks.wait` does."""
        if self._output is None:
            frames = self._ranks.wait(self._calls, self._step.step_id, timeout)
            output = self._decode(frames[self._ranks.driver])
            if self._transfers is not None:
                self._transfers.begin(self._step)
                for rank, own in frames.items():
                    ended = output if rank == self._ranks.driver else self._decode(own)
                    self._transfers.add(rank, ended.transfers_done, ended.transfers_failed)
                output.transfers_done, output.transfers_failed = self._transfers.take()
            self._output = output
        return self._output

    def _decode(self, frames: list[bytes]) -> ModelRunnerOutput:
        output = self._decoder.decode(frames)
        step_id = self._step.step_id
        if output.step_id != step_id:
            raise WireError(f"the answer to step {step_id} is one to step {output.step_id}")
        return output
