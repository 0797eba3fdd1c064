"""Two engines of a real model behind one front end, started by the launcher `process`; and the end of
its coordinator, which changes nothing for the requests.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.client.engines import OwnedEngines
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger

MODEL: dict[str, Any] = {"model": "demo", "device": "cpu", "dtype": "float32"}
STREAMS = 64
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=11, max_tokens=12, ignore_eos=True)
PROMPTS = [f"Once upon a time there were {number}" for number in range(STREAMS)]


async def stream(
    engine: AsyncLLM, prompt: str, params: SamplingParams, request_id: str
) -> list[int]:
    last = [output async for output in engine.generate(prompt, params, request_id)][-1]
    return list(last.outputs[0].token_ids)


async def streams(engine: AsyncLLM, params: SamplingParams, name: str) -> list[list[int]]:
    running = (
        stream(engine, prompt, params, f"{name}{number}") for number, prompt in enumerate(PROMPTS)
    )
    return await asyncio.gather(*running)


def finished(logger: RecordingStatLogger) -> dict[int, int]:
    """The number of requests that each engine finished, by the logger's records."""
    counts: dict[int, int] = {}
    for record in logger.records:
        if record.iteration is not None:
            counts[record.engine_index] = counts.get(record.engine_index, 0) + len(
                record.iteration.finished
            )
    return counts


@pytest.fixture(scope="module")
def expected() -> list[list[list[int]]]:
    """The tokens of each prompt, greedy and seeded, from one engine in this process."""
    with_params = []
    llm = LLM(**MODEL)
    try:
        for params in (GREEDY, SEEDED):
            outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            with_params.append([list(output.outputs[0].token_ids) for output in outputs])
    finally:
        llm.shutdown()
    return with_params


def test_two_engines_answer_as_one_and_go_on_without_their_coordinator(expected, forked_children):
    """64 streams, all complete, both engines worked, tokens as in one engine; then the coordinator is killed."""
    logger = RecordingStatLogger(StatLoggerContext(EngineConfig(model="demo")))
    config = EngineConfig(**MODEL, data_parallel_size=2)
    engine = AsyncLLM(config, engines=OwnedEngines(config, {"rec": logger}, coordinated=True))

    async def main() -> list[list[list[int]]]:
        answers = [await streams(engine, GREEDY, "greedy")]
        fleet = engine.engines.fleet
        os.kill(fleet.pids()["coordinator"], signal.SIGKILL)
        deadline = time.monotonic() + 10
        while fleet.coordinator:
            assert time.monotonic() < deadline, "the coordinator's death was not noticed"
            await asyncio.sleep(0.01)
        answers.append(await streams(engine, SEEDED, "seeded"))
        while (
            sum(finished(logger).values()) < 2 * STREAMS
        ):  # the last numbers come a moment after the last tokens
            assert time.monotonic() < deadline + 20, finished(logger)
            await asyncio.sleep(0.02)
        return answers

    try:
        assert asyncio.run(main()) == expected
        assert not engine.errored
    finally:
        engine.shutdown()
    assert sum(finished(logger).values()) == 2 * STREAMS
    assert min(finished(logger).get(index, 0) for index in (0, 1)) > STREAMS // 4
