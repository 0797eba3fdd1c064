"""The client of `tenonry bench engine` and others: many concurrent streams against one `AsyncLLM`, and their cost.

Front end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import psutil

from tenonry.errors import TenonryError
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_bench.figures import percentile
from tenonry_bench.processes import CpuMeter
from tenonry_bench.workload import default_workloads, random_prompts

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

Times = tuple[float, float, int]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `chunks`: how many outputs the streams delivered; fewer than tokens if the consumer fell behind."""

    tokens: int
    wall_s: float
    frontend_cpu_s: float
    engine_cpu_s: float
    ttft_p50_s: float
    tpot_p50_s: float
    chunks: int


class StreamClient:
    """Runs points one after another; prompts follow from the point's seed. `processes`: those whose CPU time counts as
    the engine's, by default all below this one.
    """

    def __init__(
        self,
        engine: AsyncLLM,
        vocab_size: int,
        prompt_len: int,
        processes: Sequence[psutil.Process] | None = None,
    ) -> None:
        self._engine = engine
        self._vocab_size = vocab_size
        self._prompt_len = prompt_len
        self._meter = CpuMeter(processes)
        self._seed = default_workloads().seed
        self._points = 0

    async def point(self, streams: int, output_len: int, *, seed: int, requests: int = 1) -> Point:
        """`streams` concurrent streams, each of `requests` requests one after another, each to its last token.

        Raises TenonryError if one is cut short.
        """
        prompts = random_prompts(
            streams * requests, self._prompt_len, self._seed + seed, self._vocab_size
        )
        params = SamplingParams(
            temperature=0.0, max_tokens=output_len, ignore_eos=True, output_kind=OutputKind.DELTA
        )
        self._points += 1
        self._meter.take()
        started = time.perf_counter()
        parts = await asyncio.gather(
            *(self._stream(prompts[i::streams], params, i) for i in range(streams))
        )
        wall_s = time.perf_counter() - started
        frontend_cpu_s, engine_cpu_s = self._meter.take()
        times = [one for part in parts for one in part]
        return Point(
            tokens=len(prompts) * output_len,
            wall_s=wall_s,
            frontend_cpu_s=frontend_cpu_s,
            engine_cpu_s=engine_cpu_s,
            ttft_p50_s=percentile([ttft for ttft, _, _ in times], 0.5),
            tpot_p50_s=percentile([tpot for _, tpot, _ in times], 0.5),
            chunks=sum(chunks for _, _, chunks in times),
        )

    async def _stream(
        self, prompts: list[list[int]], params: SamplingParams, stream: int
    ) -> list[Times]:
        names = (f"{self._points}-{stream}-{number}" for number in range(len(prompts)))
        return [
            await self._request(prompt, params, name)
            for prompt, name in zip(prompts, names, strict=True)
        ]

    async def _request(self, prompt: list[int], params: SamplingParams, request_id: str) -> Times:
        """(time to first token, mean time per token after it, outputs delivered)."""
        started = time.perf_counter()
        first = last = 0.0
        count = chunks = 0
        async for output in self._engine.generate({"prompt_token_ids": prompt}, params, request_id):
            last = time.perf_counter()
            if not chunks:
                first = last
            chunks += 1
            count += len(output.outputs[0].token_ids)
        if count != params.max_tokens:
            raise TenonryError(
                f"request {request_id} delivered {count} of {params.max_tokens} tokens"
            )
        return first - started, (last - first) / max(1, count - 1), chunks
