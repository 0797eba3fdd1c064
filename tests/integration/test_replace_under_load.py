"""The scheduler of a real model is replaced under 64 streams, there and back, and one that cannot start changes nothing
(AF-27).
"""

from __future__ import annotations

import asyncio
import re

import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import LaunchError, PluginNotFound
from tenonry.sampling_params import OutputKind

pytestmark = [
    pytest.mark.usefixtures("one_thread", "forked_children"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]
NUM_STREAMS = 64
BEGINNINGS = ("Once upon a time", "The little dog", "One day, Tom", "Lily was")
OWN = """
from tenonry_scheduler_batching.scheduler import BatchingScheduler

class Own(BatchingScheduler):
    pass
"""
RAISES = """
from tenonry_scheduler_batching.scheduler import BatchingScheduler

class Broken(BatchingScheduler):
    def __init__(self, context):
        raise ValueError("no such queue")
"""


class Load:
    """Streams of one engine, each greedy or drawn with a seed; `begun` of them have got a token in this round."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine = engine
        self.begun = 0
        self._rounds = 0

    def start(self) -> asyncio.Future[list[list[int]]]:
        """Start all streams; returns the future of their tokens."""
        self.begun = 0
        self._rounds += 1
        return asyncio.gather(*map(self._stream, range(NUM_STREAMS)))

    async def _stream(self, number: int) -> list[int]:
        params = SamplingParams(
            max_tokens=48 + number % 5,
            ignore_eos=True,
            output_kind=OutputKind.DELTA,
            **({"temperature": 0.0} if number % 2 else {"temperature": 0.9, "seed": number}),
        )
        ids: list[int] = []
        prompt = BEGINNINGS[number % len(BEGINNINGS)] + " again" * (number // 4)
        async for output in self.engine.generate(prompt, params, f"{number} of {self._rounds}"):
            self.begun += not ids
            ids += output.outputs[0].token_ids
        return ids


@pytest.fixture
def load() -> Load:
    config = EngineConfig(
        model="demo",
        dtype="float32",
        device="cpu",
        max_model_len=256,
        max_num_seqs=NUM_STREAMS,
        max_round_tokens=1,  # so that streams last while engines change
    )
    engine = AsyncLLM.from_config(config)
    yield Load(engine)
    engine.shutdown()


@pytest.mark.nightly
def test_there_and_back(load, tmp_path, caplog, monkeypatch):
    own = tmp_path / "own.py"
    own.write_text(OWN, "utf-8")
    engine = load.engine
    renew = engine.events.on_join
    runs: list[asyncio.Future[list[list[int]]]] = []

    async def renew_and_load(fleet: object, indexes: list[int]) -> None:
        """The new engine is ready; the streams begin in the one before it."""
        await renew(fleet, indexes)
        runs.append(load.start())
        while load.begun < NUM_STREAMS:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)

    async def main() -> list[list[int]]:
        expected = await load.start()
        monkeypatch.setattr(engine.events, "on_join", renew_and_load)
        for scheduler in (f"{own}:Own", "batching"):
            await engine.replace_engines(scheduler=scheduler)
            assert engine.config.scheduler.name == scheduler
            assert await runs[-1] == expected
        return expected

    expected = asyncio.run(main())
    assert len({tuple(ids) for ids in expected}) > NUM_STREAMS // 2  # each stream is checked
    assert [len(ids) for ids in expected] == [48 + n % 5 for n in range(NUM_STREAMS)]
    moved = re.findall(r"engine 0: resumed (\d+) requests", caplog.text)
    assert moved == [str(NUM_STREAMS)] * 2


def test_one_that_cannot_start_is_refused_without_a_token_lost(load, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text(RAISES, "utf-8")
    engine = load.engine

    async def main() -> None:
        expected = await load.start()
        run = load.start()
        with pytest.raises(PluginNotFound, match="no-such-scheduler"):
            await engine.replace_engines(scheduler="no-such-scheduler")
        assert not run.done()
        assert await run == expected
        refusal = asyncio.ensure_future(engine.replace_engines(scheduler=f"{broken}:Broken"))
        rounds = [await load.start()]
        while not refusal.done():
            rounds.append(await load.start())
        with pytest.raises(LaunchError, match="no such queue"):
            await refusal
        assert all(found == expected for found in rounds)
        assert await load.start() == expected
        assert engine.config.scheduler.name == "batching"

    asyncio.run(main())
