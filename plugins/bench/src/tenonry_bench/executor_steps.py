"""Two engines in this process, on two executors, that decode the same: additional time per step of the second.

The measuring process; the ranks of an executor run where it places them.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from tenonry.config import EngineConfig
from tenonry.engine.build import build_engine
from tenonry.errors import TenonryError
from tenonry.info import ModelInfo
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import PluginManager
from tenonry.sampling_params import SamplingParams

PROMPT_LEN = 32
SETTLE_STEPS = 50  # decoding steps before the clock runs
BLOCK_SIZE = 16
VOCAB_SIZE = 32_000


class DecodingEngine:
    """An engine with the worker `null` in which `running` requests decode, and never end."""

    def __init__(self, running: int, steps: int, **settings: Any) -> None:
        longest = PROMPT_LEN + BLOCK_SIZE + running + SETTLE_STEPS + steps + 1
        config = EngineConfig(
            model="none",
            worker="null",
            device="cpu",
            max_num_seqs=running,
            max_num_batched_tokens=running * (PROMPT_LEN + BLOCK_SIZE),
            max_model_len=longest,
            block_size=BLOCK_SIZE,
            log_stats=False,
            **settings,
        )
        model = ModelInfo(
            name="none", path="", architecture="none", max_model_len=longest, vocab_size=VOCAB_SIZE
        )
        plan = PluginManager(config.plugins).plan(config, launcher=False)
        entry = plan.get("executor")
        self.origin = f"{entry.distribution} {entry.version}".strip() or entry.path
        self._running = running
        self._core = build_engine(config, model, plan)
        try:
            self._settle()
        except BaseException:
            self.close()
            raise

    def _settle(self) -> None:
        """All requests decode. Prompts differ in length by up to a block, so that steps are alike."""
        rng = np.random.default_rng(self._running)
        params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
        for index in range(self._running):
            prompt = rng.integers(300, VOCAB_SIZE, PROMPT_LEN + index % BLOCK_SIZE, np.int32)
            refused = self._core.add_request(
                EngineCoreRequest(
                    handle=index + 1,
                    request_id=str(index),
                    prompt_token_ids=prompt,
                    sampling_params=params,
                )
            )
            if refused is not None:
                raise TenonryError(f"a request of this benchmark was refused: {refused.error}")
        while self._core.request_counts() != (self._running, 0):
            self._core.step()
        for _ in range(SETTLE_STEPS):
            self._core.step()

    def timed(self, steps: int) -> list[float]:
        """Seconds of each step, from `schedule` to `update_from_output`. Raises TenonryError if it answers too few."""
        times = []
        with frozen_heap():
            for _ in range(steps):
                start = time.perf_counter()
                news, _ = self._core.step()
                times.append(time.perf_counter() - start)
                answered = sum(len(outputs.handles) for outputs in news.values())
                if answered != self._running:
                    raise TenonryError(f"a step answered {answered} of {self._running} requests")
        return times

    def close(self) -> None:
        """Stop the ranks."""
        self._core.shutdown()


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude live objects from garbage collection, as in a serving engine."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
