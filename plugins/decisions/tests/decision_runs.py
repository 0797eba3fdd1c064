"""A scheduler under a virtual engine and clock, with its decisions recorded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tenonry.config import EngineConfig
from tenonry.info import PluginRecord
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry.step import SchedulerOutput
from tenonry_decisions.attach import make_header
from tenonry_decisions.frames import Chunk, Header
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.recording import Recording
from tenonry_decisions.sinks import MemorySink
from tenonry_decisions.virtual import VirtualEngine
from tenonry_scheduler_batching.scheduler import BatchingScheduler


@dataclass
class Asked:
    """A request of a test."""

    step: int
    name: str
    prompt: int
    outputs: int
    priority: int = 0


@dataclass
class Run:
    """What a run left: its records, and its steps as the engine saw them."""

    header: Header
    chunks: list[Chunk]
    outputs: list[SchedulerOutput]
    memory: MemorySink

    @cached_property
    def recording(self) -> Recording:
        return Recording(self.header, self.chunks)


def make_context(policy: Any = None, num_blocks: int = 100, **settings: Any) -> SchedulerContext:
    """The context of a scheduler; `policy`: a class instead of a name."""
    config = EngineConfig(
        **{"model": "none", "max_num_seqs": 4, "max_num_batched_tokens": 16, **settings}
    )
    plugin = PluginRecord("scheduling_policy", "mine", "decision_runs:Mine")
    now = itertools.count()
    return SchedulerContext(
        config,
        KVCacheConfig(
            num_blocks=num_blocks,
            block_size=4,
            groups=(KVCacheGroup(layers=("a",)),),
            max_model_len=64,
        ),
        max_model_len=64,
        clock=lambda: next(now) / 1000,
        resolve=resolve_point if policy is None else lambda *_: (policy, plugin),
    )


def run(
    asked: Iterable[Asked],
    scheduler: Callable[[SchedulerContext], Any] = BatchingScheduler,
    *,
    num_steps: int = 10_000,
    memory_steps: int = 256,
    **settings: Any,
) -> Run:
    """Step until all requests have ended, at most `num_steps` times."""
    context = make_context(**settings)
    made = scheduler(context)
    chunks: list[Chunk] = []
    memory = MemorySink(memory_steps)
    header = make_header(
        context, PluginRecord("scheduler", "batching", "", "tenonry-x", "0.1"), "live"
    )
    memory.begin(header)
    observed = ObservedScheduler(made, [Recorder(header, made, [chunks.append, memory.write])])
    engine = VirtualEngine(observed, context.max_model_len)
    arrivals = list(enumerate(asked, start=1))
    outputs = []
    for step in range(num_steps):
        while arrivals and arrivals[0][1].step <= step:
            handle, each = arrivals.pop(0)
            source = EngineCoreRequest(
                handle=handle,
                request_id=each.name,
                prompt_token_ids=np.arange(each.prompt, dtype=np.int32) + 100 * handle,
                sampling_params=SamplingParams(max_tokens=each.outputs),
                priority=each.priority,
            )
            engine.add(source, context.clock())
        if not arrivals and not engine.has_requests():
            break
        outputs.append(engine.step())
    observed.shutdown()
    return Run(header, chunks, outputs, memory)


def busy_run() -> Run:
    """Rows, budget and blocks all run out."""
    asked = [Asked(0, "a", 6, 24), Asked(0, "b", 6, 30), Asked(1, "long", 40, 10)]
    asked += [Asked(2 + n, f"late-{n}", 6, 12) for n in range(4)]
    return run(asked, num_blocks=24)


def answer_all(core: Any, number: int = 5) -> list[int]:
    """Requests of several lengths, two at a time, until none is left; returns the tokens that clients got."""
    tokens: list[int] = []
    left = list(range(1, number + 1))
    while left or core.has_work():
        for handle in left[:2]:
            core.add_request(
                EngineCoreRequest(
                    handle=handle,
                    request_id=f"r{handle}",
                    prompt_token_ids=np.arange(4 + handle, dtype=np.int32),
                    sampling_params=SamplingParams(temperature=0, max_tokens=3 + handle),
                )
            )
        left = left[2:]
        for outputs in core.step()[0].values():
            tokens += outputs.token_ids.tolist()
    return tokens
