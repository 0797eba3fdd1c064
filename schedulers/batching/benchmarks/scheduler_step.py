"""What one scheduler step costs while requests decode: `schedule()` + `update_from_output()`, without any worker.

Rows stand at staggered phases of their blocks, so the work of filling and hashing blocks is spread as in a real load. Run
it with `python schedulers/batching/benchmarks/scheduler_step.py`, or call `measure`.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from typing import NamedTuple

import numpy as np

from tenonry.config import EngineConfig
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.scheduling import StepValidator
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduler_batching.scheduler import BatchingScheduler

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
END_ID = 2


class StepTimes(NamedTuple):
    """Milliseconds per step."""

    mean_ms: float
    p50_ms: float
    p99_ms: float


class Load:
    """A batching scheduler whose `running` requests all decode, with `waiting` more behind them."""

    def __init__(self, running: int, *, waiting: int = 0, validate: bool = False, prompt_len: int = 32) -> None:
        config = EngineConfig(
            model="none", max_num_seqs=running, max_num_batched_tokens=running * (prompt_len + BLOCK_SIZE)
        )
        blocks = running * MAX_MODEL_LEN // BLOCK_SIZE
        kv_cache = KVCacheConfig(
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
            groups=(KVCacheGroup(layers=("0",)),),
            max_model_len=MAX_MODEL_LEN,
        )
        context = SchedulerContext(config, kv_cache, max_model_len=MAX_MODEL_LEN, clock=time.monotonic)
        self.scheduler = BatchingScheduler(context)
        self.validator = StepValidator("batching", config, kv_cache, MAX_MODEL_LEN) if validate else None
        self._random = np.random.default_rng(0)
        for number in range(running + waiting):
            self._add(number, prompt_len + number % BLOCK_SIZE)
        self.step()
        if self.scheduler.get_request_counts() != (running, waiting):
            raise RuntimeError(f"wanted {running} running, {waiting} waiting: {self.scheduler.get_request_counts()}")

    def _add(self, number: int, prompt_len: int) -> None:
        source = EngineCoreRequest(
            handle=number + 1,
            request_id=str(number),
            prompt_token_ids=self._random.integers(3, 30_000, prompt_len, np.int32),
            sampling_params=SamplingParams(max_tokens=None),
            stop_token_ids=(END_ID,),
        )
        self.scheduler.add_request(Request(source, number, 0.0, MAX_MODEL_LEN))
        if self.validator is not None:
            self.validator.added(source.handle)

    def step(self) -> float:
        """One step; returns the seconds that it took, without the making of a result."""
        start = time.perf_counter()
        output = self.scheduler.schedule()
        if self.validator is not None:
            self.validator.check(output)
        scheduled = time.perf_counter()
        result = self._answer(output)
        answered = time.perf_counter()
        self.scheduler.update_from_output(output, result)
        if self.validator is not None:
            self.validator.answered(output, result)
        return time.perf_counter() - answered + scheduled - start

    def _answer(self, output: SchedulerOutput) -> ModelRunnerOutput:
        row = output.row[output.samples]
        return ModelRunnerOutput(
            step_id=output.step_id,
            row=row,
            offsets=np.arange(len(row) + 1, dtype=np.int32),
            token_ids=self._random.integers(3, 30_000, len(row), np.int32),
        )


def measure(running: int, *, steps: int = 640, waiting: int = 0, validate: bool = False, runs: int = 3) -> StepTimes:
    """The best of `runs` runs of `steps` steps each, after a warm-up; the garbage collector's heap is frozen."""
    best = StepTimes(float("inf"), float("inf"), float("inf"))
    for _ in range(runs):
        load = Load(running, waiting=waiting, validate=validate)
        gc.collect()
        gc.freeze()
        for _ in range(2 * BLOCK_SIZE):
            load.step()
        times = np.array([load.step() for _ in range(steps)]) * 1e3
        gc.unfreeze()
        best = min(best, StepTimes(float(times.mean()), *np.percentile(times, [50, 99]).tolist()))
    return best


def main() -> None:
    """Print one line per case, and all of them as JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, nargs="+", default=[32, 256, 1024])
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100_000])
    parser.add_argument("--steps", type=int, default=640)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    for waiting in given.waiting:
        for running in given.running:
            for validate in (False, True):
                times = measure(running, steps=given.steps, waiting=waiting, validate=validate, runs=given.runs)
                name = f"running={running} waiting={waiting} validator={'on' if validate else 'off'}"
                found[name] = times._asdict()
                if not given.json:
                    print(f"{name:50} mean {times.mean_ms:.3f} ms  p50 {times.p50_ms:.3f}  p99 {times.p99_ms:.3f}")
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
