"""An AsyncLLM over a real engine process of fakes, and the loop that serves it. Test process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from kernel_engine import fake_config
from kernel_site import Site, forget_modules

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_testkit.fakes import TokenModel

T = TypeVar("T")
LENGTH = 512
QUICK = {"name": "kernel_parts:MoodyWorker", "options": {"delay_s": 0.002}}


@contextlib.contextmanager
def fake_model_installed(folder: Path) -> Iterator[Site]:
    """The model `fake` is known to every front end of this process, through a hook module like any other."""
    folder.mkdir(exist_ok=True)
    site = Site(folder)
    site.install("kernel-test-model", entry_points={"tenonry.plugins": {"fake-model": "tenonry_testkit.fakes.model"}})
    sys.path.insert(0, str(folder))
    try:
        yield site
    finally:
        sys.path.remove(str(folder))
        forget_modules(folder)


def served_config(**values: Any) -> EngineConfig:
    return fake_config(
        **{"plugins": {"allow": ["fake-model"]}, "max_model_len": LENGTH, "max_num_seqs": 64,
           "max_num_batched_tokens": 1024, "worker": QUICK, **values}
    )  # fmt: skip


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": 0, "max_tokens": 8, "detokenize": False, "output_kind": OutputKind.DELTA, **fields}
    )


def tokens(prompt: list[int] | str, sampling: SamplingParams) -> list[int]:
    """What the fake model answers."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
    return TokenModel(512).complete(ids, sampling, max_model_len=LENGTH).token_ids


class Served:
    """One AsyncLLM and its event loop."""

    def __init__(self, *, observers: dict[str, StatLogger] | None = None, **values: Any) -> None:
        self.runner = asyncio.Runner()
        self.engine = AsyncLLM(served_config(**values), stat_loggers=observers)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(main)

    def close(self) -> None:
        self.engine.shutdown()
        self.runner.close()


async def collect(engine: AsyncLLM, prompt: Any, sampling: SamplingParams, request_id: str, **fields: Any) -> list[int]:
    """All tokens of one DELTA stream."""
    got: list[int] = []
    last: RequestOutput | None = None
    async for last in engine.generate(prompt, sampling, request_id, **fields):
        got += last.outputs[0].token_ids
    assert last is not None
    assert last.finished
    return got
