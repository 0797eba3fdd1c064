"""Makes timeline.svg: a run with a long prompt, a busy policy and preemption, for *Explain a wait*. `--check` compares.

The scheduler `batching` and a policy decide; a virtual engine answers, so that every run is the same. Run it as
`python docs/drawings/timeline.py` after a change of the scheduler or of the drawing; a test fails when it is out of
date.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tenonry.config import EngineConfig
from tenonry.info import PluginRecord
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.attach import make_header
from tenonry_decisions.frames import Chunk, Header
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.recording import Recording
from tenonry_decisions.timeline import draw
from tenonry_decisions.virtual import VirtualEngine
from tenonry_scheduler_batching.policies import FcfsPolicy
from tenonry_scheduler_batching.scheduler import BatchingScheduler

HERE = Path(__file__).resolve().parent
DRAWING = HERE / "timeline.svg"
# (step of arrival, name, prompt tokens, output tokens)
REQUESTS = (
    (0, "chat-1", 6, 24),
    (0, "chat-2", 6, 30),
    (1, "report", 40, 10),
    (2, "chat-3", 6, 12),
    (3, "chat-4", 6, 12),
    (5, "batch-1", 8, 10),
    (6, "batch-2", 8, 6),
    (8, "chat-5", 6, 8),
)


class QuietHours(FcfsPolicy):
    """Admits nothing of a batch before second 34."""

    def admit(self, request: Any, state: Any) -> bool:
        return state.now >= 34 or not request.request_id.startswith("batch")


def record() -> Recording:
    """The records of the run."""
    now = [0.0]
    config = EngineConfig(model="none", max_num_seqs=4, max_num_batched_tokens=16)
    kv_cache = KVCacheConfig(
        num_blocks=24, block_size=4, groups=(KVCacheGroup(layers=("a",)),), max_model_len=64
    )
    plugin = PluginRecord("scheduling_policy", "quiet-hours", "timeline:QuietHours")
    context = SchedulerContext(
        config,
        kv_cache,
        max_model_len=64,
        clock=lambda: now[0],
        resolve=lambda *_: (QuietHours, plugin),
    )
    scheduler = BatchingScheduler(context)
    chunks: list[Chunk] = []
    header: Header = make_header(
        context, PluginRecord("scheduler", "batching", ""), "live", "quiet-hours", clock=lambda: 0.0
    )
    observed = ObservedScheduler(scheduler, [Recorder(header, scheduler, [chunks.append])])
    engine = VirtualEngine(observed, context.max_model_len)
    arrivals = list(enumerate(REQUESTS, start=1))
    for step in itertools.count():
        while arrivals and arrivals[0][1][0] <= step:
            handle, (_, name, length, outputs) = arrivals.pop(0)
            prompt = np.arange(length, dtype=np.int32) + 100 * handle
            params = SamplingParams(max_tokens=outputs)
            source = EngineCoreRequest(
                handle=handle, request_id=name, prompt_token_ids=prompt, sampling_params=params
            )
            engine.add(source, now[0])
        if not arrivals and not engine.has_requests():
            break
        engine.step()
        now[0] += 1
    observed.shutdown()
    return Recording(header, chunks)


if __name__ == "__main__":
    text = draw(record())
    if "--check" in sys.argv:
        sys.exit(DRAWING.read_text(encoding="utf-8") != text)
    DRAWING.write_text(text, encoding="utf-8")
