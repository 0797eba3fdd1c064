"""Scheduler: selects the requests of each step. Engine process, called by the engine loop only.

Most authors want `tenonry_scheduling.BaseScheduler` (write one method) or a policy of the batching scheduler (ten
lines); the kernel calls this class. The contract below is checked by the validator on every step and by the conformance
suite in `tenonry-testkit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from tenonry.config import PluginChoice
from tenonry.info import PluginRecord
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.messages import OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.point import Point
from tenonry.request import Request
from tenonry.stats import SchedulerStats
from tenonry.step import ModelRunnerOutput, SchedulerOutput


@dataclass(slots=True)
class SchedulerContext(PluginContext):
    """Inputs of a scheduler. `clock` is the only clock it may read (seconds, monotonic).

    `max_concurrent_steps`: steps that may be in flight. `feeds_back_tokens`: whether a row with a pending token may be
    scheduled. `max_round_tokens`: maximum tokens sampled per row in one step. `resolve` finds plugins of points opened
    by the scheduler itself; None: `resolve_point` of `tenonry.plugin.manager`.
    """

    kv_cache: KVCacheConfig
    _: KW_ONLY
    max_model_len: int
    clock: Callable[[], float]
    plugin_name: str = ""
    engine_index: int = 0
    max_concurrent_steps: int = 1
    feeds_back_tokens: bool = True
    max_round_tokens: int = 1
    kv_connector: KVConnector | None = None
    resolve: Callable[[Point, PluginChoice], tuple[Any, PluginRecord]] | None = None


class Scheduler(Plugin[SchedulerContext], ABC):
    """Decides the number of tokens of each request in each step.

    Contract:
    - `schedule()` never exceeds max_num_batched_tokens, max_num_seqs or max_model_len; never schedules an unknown,
      finished or paused request; never gives one block to two writers; every scheduled token has a slot.
    - The rows of one step have at most `config.max_loras` different adapters, if that is not 0.
    - If `config.max_images` is not 0, a step encodes at most `config.max_encoder_tokens` tokens of images (0: as
      many as it has tokens), or one image that is larger: those that begin in the computed tokens, and one that a row
      enters in the middle. Without chunked prefill one prompt may have more.
    - No step ends in one of the pieces that `Media.whole` of a request names.
    - Requests that are together within every limit of a step take no more steps than without what is limited.
    - Steps are numbered from 0, without gaps.
    - The first stop id from `min_tokens` on ends a request; an earlier one, which some workers sample, does not.
    - A new row has the prompt, delivered tokens, sampling parameters, stop ids, bad words, adapter, features and
      media of its request, also when it comes back after preemption; `Request.new_row` makes it.
    - A row whose request has `structured_output` is not scheduled while its last sampled token is unknown.
    - A step is a round (`SchedulerOutput.round_tokens` above 1) only if each of its rows was sent before, computes one
      token and samples; the result may hold fewer tokens of a row, and the row continues from there.
    - It is correct with one, two and three steps in flight: `schedule()` may be called again before the previous step's
      result came back; results come in step order; results for rows that were finished, aborted, preempted or reset in
      the interval are dropped.
    - Every added request reaches exactly one terminal outcome. Unless `starvation_free` is False, a request waits at
      most for those ahead of it at arrival plus max_num_seqs more.
    - `add_request` rejects a request that can never run, and only such a one.
    - When all requests have ended, every block is free or a reusable cached block. A cached block is reused only for
      the same tokens, cache salt, and all else that K and V depend on (also `KVCacheGroup.lengths`), and never after a
      reset, also through a KV connector.
    - A KV load that does not end delays its own request, for a bounded time, and no later one; its blocks stay
      reserved until it ends.
    - Counters of `make_stats` add up to what happened: steps, preemptions, cached tokens of each request's first
      start, loads, and the drafts of results.
    - `update_from_output` raises PluginError for a result that does not fit its step: rows that are missing, not asked
      or named twice, or another number of tokens. A request ends with what the worker pooled in its last step.
    - A request that has ended leaves nothing behind: neither it nor its handle is referred to any more.
    - A KV connector gets all full blocks of a request that ended by itself, unless a reset or failed row dropped them.
    - A KV load that fails restarts no unrelated request. A connector that keeps blocks for too long gets no others, and
      the engine ends with an error that names it if the blocks left are too few for a longest sequence.
    - `make_stats().extra` has the numbers of the KV connector, and clients get its parameters. An exception in it is a
      PluginFault that names it and its method, and so for other plugins that the scheduler calls.
    - The same calls and the same clock give the same decisions.

    Exceptions end the engine and name the plugin; `add_request` may reject one request with RequestError.
    """

    starvation_free: ClassVar[bool] = True

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Take over a request. Raises RequestError when it can never run here."""

    @abstractmethod
    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        """End requests from outside (abort), None for all; unknown handles are ignored. Returns those that ended.

        No terminal output is emitted for them by `update_from_output`; the caller informs the clients.
        """

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Decide the next step; one without rows and without `gone` means that there is nothing to do."""

    @abstractmethod
    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> OutputsByClient:
        """Apply the result of a step that `schedule` made. Returns the outputs by client index."""

    @abstractmethod
    def has_requests(self) -> bool:
        """True while a request is unfinished or a `gone` row is unsent."""

    @abstractmethod
    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting)."""

    @abstractmethod
    def make_stats(self) -> SchedulerStats:
        """Numbers since the previous call."""

    @abstractmethod
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Clear cached blocks; True if all were. `reset_running_requests` preempts the running ones first."""

    def shutdown(self) -> None:
        """Release what the scheduler holds outside the process. Called once."""
