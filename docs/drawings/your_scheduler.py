"""Makes the drawings and the table of *Your scheduler in ten minutes*. `--check` compares.

The scheduler of the tutorial and `batching` decide about the tutorial's trace, a step for each of its seconds, with a
virtual engine, so that every run is the same. Run it as `python docs/drawings/your_scheduler.py` after a change; a test
fails when a drawing is out of date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tenonry.config import EngineConfig
from tenonry.info import PluginRecord
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry_decisions.attach import make_header
from tenonry_decisions.frames import LIVE, SHADOW, Chunk
from tenonry_decisions.observed import ObservedScheduler
from tenonry_decisions.recorder import Recorder
from tenonry_decisions.recording import Recording
from tenonry_decisions.replay import first_token
from tenonry_decisions.shadow import Shadow
from tenonry_decisions.timeline import draw
from tenonry_decisions.virtual import VirtualEngine
from tenonry_scheduler_batching.scheduler import BatchingScheduler

HERE = Path(__file__).resolve().parent
TUTORIAL = HERE.parent / "tutorial"
sys.path.append(str(TUTORIAL / "packages" / "short-prompts" / "src"))

from short_prompts.plugin import ShortPrompts  # noqa: E402 - found by the line above

PAGE = TUTORIAL / "your-scheduler.md"
TRACE = HERE / "your-scheduler-trace.jsonl"
START, END = "<!-- table: your_scheduler.py -->\n", "<!-- end -->"
SERVED, SHADOWED = HERE / "your-scheduler-served.svg", HERE / "your-scheduler-shadow.svg"
MAX_MODEL_LEN = 128
Make = Callable[[SchedulerContext], Scheduler]


class Run:
    """An engine that steps over the trace, and the records of its scheduler and of a shadow."""

    def __init__(self, live: Make, name: str, shadow: Make | None = None) -> None:
        self._now = 0.0
        self.chunks: dict[str, list[Chunk]] = {LIVE: [], SHADOW: []}
        self.headers: dict[str, Any] = {}
        scheduler = live(self._context())
        observers: list[Any] = [self._recorder(scheduler, name, LIVE)]
        if shadow is not None:
            candidate = shadow(self._context())
            recorder = self._recorder(candidate, "short-prompts", SHADOW)
            observed = ObservedScheduler(candidate, [recorder])
            observers.append(Shadow(observed, "short-prompts", MAX_MODEL_LEN))
        self._observed = ObservedScheduler(scheduler, observers)
        self._play(VirtualEngine(self._observed, MAX_MODEL_LEN))

    def recording(self, source: str = LIVE) -> Recording:
        """Records of one of the two."""
        return Recording(self.headers[source], self.chunks[source])

    def _context(self) -> SchedulerContext:
        config = EngineConfig(model="none", max_num_seqs=3, max_num_batched_tokens=32)
        kv_cache = KVCacheConfig(
            num_blocks=100,
            block_size=8,
            groups=(KVCacheGroup(layers=("a",)),),
            max_model_len=MAX_MODEL_LEN,
        )
        return SchedulerContext(
            config,
            kv_cache,
            max_model_len=MAX_MODEL_LEN,
            clock=lambda: self._now,
            resolve=resolve_point,
        )

    def _recorder(self, scheduler: Scheduler, name: str, source: str) -> Recorder:
        plugin = PluginRecord("scheduler", name, "")
        header = make_header(scheduler.context, plugin, source, "", clock=lambda: 0.0)
        self.headers[source] = header
        return Recorder(header, scheduler, [self.chunks[source].append])

    def _play(self, engine: VirtualEngine) -> None:
        lines = [json.loads(line) for line in TRACE.read_text().splitlines()]
        arrivals = list(enumerate(lines, start=1))
        while arrivals or engine.has_requests():
            while arrivals and arrivals[0][1]["arrival_time"] <= self._now:
                handle, line = arrivals.pop(0)
                prompt = np.arange(line["prompt_tokens"], dtype=np.int32) + 1000 * handle
                source = EngineCoreRequest(
                    handle=handle,
                    request_id=line["request_id"],
                    prompt_token_ids=prompt,
                    sampling_params=SamplingParams(max_tokens=line["output_tokens"]),
                )
                engine.add(source, self._now)
            engine.step()
            self._now += 1
        self._observed.shutdown()


def stacked(*drawings: str) -> str:
    """Drawings below each other as one."""
    width, parts, y = 0, [], 0
    for drawing in drawings:
        found = re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing)
        assert found is not None  # noqa: S101 - `draw` writes it
        width, height = int(found[1]), int(found[2])
        size = f'<svg y="{y}" width="{width}" height="{height}" '
        parts.append(drawing.replace("<svg ", size, 1))
        y += height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img">\n'
    return head + "".join(parts) + "</svg>\n"


def table(*recordings: Recording) -> str:
    """Steps from the arrival of each request to its first token."""
    names = [track.label for track in recordings[0].tracks]
    lines = [f"| scheduler | {' | '.join(names)} | mean |", "|---" * (len(names) + 2) + "|"]
    for recording in recordings:
        waits = [first_token(recording, track) - track.facts.step + 1 for track in recording.tracks]
        cells = [f"`{recording.header.scheduler}`", *map(str, waits), f"{np.mean(waits):.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """The text of each drawing, and of the page."""
    fcfs = Run(BatchingScheduler, "batching", shadow=ShortPrompts)
    live, shadow = fcfs.recording(), fcfs.recording(SHADOW)
    served = Run(ShortPrompts, "short-prompts").recording()
    before, rest = PAGE.read_text("utf-8").split(START)
    return {
        SERVED: stacked(draw(live), draw(served)),
        SHADOWED: stacked(draw(live), draw(shadow)),
        PAGE: before + START + table(live, served) + END + rest.split(END)[1],
    }


if __name__ == "__main__":
    made = files()
    if "--check" in sys.argv:
        sys.exit(any(path.read_text("utf-8") != text for path, text in made.items()))
    for path, text in made.items():
        path.write_text(text, "utf-8")
