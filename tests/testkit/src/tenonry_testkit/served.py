"""Front ends over engines of fakes: their configuration, their expected answers, and a stream to its end. Test process.

The model is found by processes for which `plugins.fake_model_installed` (the fixture `fake_model_site`) installed it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tenonry.config import EngineConfig, read
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_testkit.fakes.tokens import TokenModel

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM
    from tenonry.outputs import RequestOutput

FAKES = "tenonry_testkit.fakes"
LENGTH = 512  # max_model_len


def served_config(**values: Any) -> EngineConfig:
    """Return a configuration whose parts are all fakes; any field may be replaced."""
    return read(
        EngineConfig,
        {
            "model": "fake", "executor": f"{FAKES}:InstantExecutor", "scheduler": f"{FAKES}:ReferenceScheduler",
            "worker": {"name": f"{FAKES}:FakeWorker", "options": {"delay_s": 0.002}},
            "io_processor": f"{FAKES}:ByteIOProcessor", "load_balancer": f"{FAKES}.load_balancer:TurnsBalancer",
            "plugins": {"allow": ["fake-model"]},
            "max_model_len": LENGTH, "max_num_seqs": 64, "max_num_batched_tokens": 1024, **values,
        },
        EngineConfig.model_fields,
    )  # fmt: skip


def params(**fields: Any) -> SamplingParams:
    """Return parameters for eight greedy tokens, streamed; any field may be replaced."""
    return SamplingParams(
        **{
            "temperature": 0,
            "max_tokens": 8,
            "detokenize": False,
            "output_kind": OutputKind.DELTA,
            **fields,
        }
    )


def tokens(prompt: list[int] | str, sampling: SamplingParams) -> list[int]:
    """Expected tokens of the model of `served_config`."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return TokenModel(512).complete(ids, sampling, max_model_len=LENGTH).token_ids


async def collect(
    engine: AsyncLLM,
    prompt: Any,
    sampling: SamplingParams,
    request_id: str,
    *,
    has_begun: asyncio.Event | None = None,
    **fields: Any,
) -> list[int]:
    """Return all tokens of one DELTA stream. `has_begun`: event set with the first output."""
    got: list[int] = []
    last: RequestOutput | None = None
    async for last in engine.generate(prompt, sampling, request_id, **fields):
        got += last.outputs[0].token_ids
        if has_begun is not None:
            has_begun.set()
    assert last is not None
    assert last.finished
    return got
