"""Continuous batching: every step runs the running requests, then starts waiting ones that fit. Engine process.

Running requests come first, decodes before prefills; prompts are split over steps by the token budget; when blocks run
out a victim loses its row and is recomputed later. The policy, a separate plugin, determines queue order, admission and
victims.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from pydantic import BaseModel, Field

from tenonry.config import EngineConfig
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.plugin.manager import resolve_point
from tenonry.request import Request
from tenonry_kvcache import SNAPSHOT_INTERVAL, TRANSFER_TIMEOUT_S, KVCacheManager
from tenonry_scheduler_batching.policy import AdmissionState, bind_policy, check_policy
from tenonry_scheduler_batching.settings import SCHEDULING_POLICIES, BatchingSettings
from tenonry_scheduling import BaseScheduler, StepBuilder

LONG_STEPS = 4  # minimum excess over another prompt, in whole steps and as a factor, for a prompt to share with it
MAX_SHARING = 8  # maximum number of waiting prompts considered
MAX_PASSED = 64  # waiting requests considered in a step beyond its free rows


class BatchingOptions(PluginOptions):
    """Options of the scheduler `batching`."""

    long_prefill_token_threshold: int | None = Field(
        None,
        ge=1,
        description="Maximum prompt tokens of one request per step, so that long prompts do "
        "not delay others.",
    )
    watermark: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="Share of the KV blocks that must be free for a request to start.",
    )
    prefix_cache_seed: str | None = Field(
        None,
        min_length=1,
        description="Seed of the block hashes. Defaults to a random one per process.",
    )
    kv_transfer_timeout: float = Field(
        TRANSFER_TIMEOUT_S,
        gt=0,
        description="KV transfer timeout in seconds, after which a request computes its "
        "prompt itself. Blocks of the transfer stay reserved until the KV "
        "connector reports its end. A connector that keeps blocks for longer is "
        "disabled until it returns them; if the other blocks are too few for the "
        "longest sequence, the engine restarts.",
    )
    state_snapshot_interval: int = Field(
        SNAPSHOT_INTERVAL,
        ge=1,
        description="Tokens between two state snapshots of a sequence, rounded up to whole "
        "blocks. Further snapshots are taken at the last full block of a prompt "
        "and where it diverges from a cached one.",
    )


class BatchingScheduler(BaseScheduler):
    """Continuous batching with chunked prefill, preemption by recomputation and prefix caching."""

    Options = BatchingOptions
    Settings = BatchingSettings

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Check that the policy exists and its options are valid."""
        policy = config.section(BatchingSettings).scheduling_policy
        check_policy(*resolve_point(SCHEDULING_POLICIES, policy))

    def __init__(self, context: SchedulerContext) -> None:
        options = (
            context.options if isinstance(context.options, BatchingOptions) else BatchingOptions()
        )
        resolve = context.resolve or resolve_point
        policy = context.config.section(BatchingSettings).scheduling_policy
        target, record = resolve(SCHEDULING_POLICIES, policy)
        self.policy = bind_policy(target, record)
        self._policy_name = f"policy '{record.name}'"
        self.starvation_free = self.policy.starvation_free  # type: ignore[misc]  # as free as its policy
        blocks = KVCacheManager(
            context,
            options.prefix_cache_seed,
            options.kv_transfer_timeout,
            options.state_snapshot_interval,
        )
        super().__init__(context, blocks)
        self._max_prefill = options.long_prefill_token_threshold if self.chunked_prefill else None
        self._watermark = int(options.watermark * self.blocks.num_total)
        self._long = LONG_STEPS * self.token_budget
        if not self.chunked_prefill:
            self._long = context.max_model_len + 1
        self._has_long = False  # a long prompt may be running

    def order(self, request: Request) -> Any:
        return self.policy.order(request)

    def victim(self, running: list[Request]) -> Request:
        return self.policy.victim(running)

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        self._has_long |= request.num_tokens - num_computed >= self._long

    def choose(self, step: StepBuilder) -> None:
        max_prefill = self._max_prefill or self._share_of_long(step)
        step.run_ready(max_prefill)
        if (
            self.waiting
            and step.free_rows
            and step.tokens_left
            and not step.preempted
            and (step.free_blocks >= self._watermark or not step.num_running)
        ):
            self._admit(step, max_prefill)

    def _share_of_long(self, step: StepBuilder) -> int | None:
        """Maximum tokens of each prompt while a much shorter one computes or waits, which leaves room for it in this
        step.
        """
        if not self._has_long:
            return None
        uncomputed = step.num_uncomputed(step.ready)
        longest = int(uncomputed.max(initial=0))
        self._has_long = longest >= self._long
        if not self._has_long:
            return None
        prompts = uncomputed[uncomputed > 1].tolist()
        num_decodes = len(uncomputed) - len(prompts)
        next_ones = islice(step.waiting, min(step.free_rows, MAX_SHARING))
        prompts += [request.num_tokens for request in next_ones]
        limit = LONG_STEPS * min(prompts)
        num_long = sum(length >= limit for length in prompts)
        if not num_long:
            return None
        return max(1, (self.token_budget - num_decodes) // (num_long + 1))

    def _admit(self, step: StepBuilder, max_prefill: int | None) -> None:
        """Start waiting requests, in order, until budget, rows or blocks run out."""
        for request in islice(step.waiting, step.free_rows + MAX_PASSED):
            if not self._admits(request, step):
                break
            step.run(request, max_prefill)
            if step.full or not step.free_rows or not step.tokens_left:
                break

    def _admits(self, request: Request, step: StepBuilder) -> bool:
        admit = self.policy.admit
        if admit is None:
            return True
        state = AdmissionState(step.free_blocks, step.num_running, step.tokens_left, step.now)
        is_admitted = admit(request, state)
        if not is_admitted:
            self.held[request.handle] = self._policy_name
        return is_admitted
