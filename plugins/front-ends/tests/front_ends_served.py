"""Engines of fakes, what they answer, and how the tests wait for them. Test process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig, make_config
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_testkit.fakes import TokenModel

FAKES = "tenonry_testkit.fakes"
LENGTH = 512


def served_config(**values: Any) -> EngineConfig:
    """All parts are fakes; any field may be replaced."""
    return make_config(
        {
            "model": "fake", "executor": f"{FAKES}:InstantExecutor", "scheduler": f"{FAKES}:ReferenceScheduler",
            "worker": {"name": f"{FAKES}:FakeWorker", "options": {"delay_s": 0.002}},
            "io_processor": f"{FAKES}:ByteIOProcessor", "plugins": {"allow": ["fake-model"]},
            "max_model_len": LENGTH, "max_num_seqs": 64, "max_num_batched_tokens": 1024, **values,
        },
        use_environment=False,
    )  # fmt: skip


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": 8, "detokenize": False, "output_kind": OutputKind.DELTA, **fields}
    )


def tokens(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """What the fake model answers."""
    return TokenModel(512).complete(prompt, sampling, max_model_len=LENGTH).token_ids


async def collect(engine: AsyncLLM, prompt: Any, sampling: SamplingParams, request_id: str, **fields: Any) -> list[int]:
    """All tokens of one DELTA stream."""
    got: list[int] = []
    last: RequestOutput | None = None
    async for last in engine.generate(prompt, sampling, request_id, **fields):
        got += last.outputs[0].token_ids
    assert last is not None
    assert last.finished
    return got


def eventually(condition: Callable[[], object], seconds: float = 8.0) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.01)
