"""An engine is killed in a stream whose grammar has a costly lexer: this stream and later ones continue (G34)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator

import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams, StructuredOutput
from tenonry.outputs import CompletionOutput
from tenonry.sampling_params import OutputKind

pytestmark = [
    pytest.mark.usefixtures("one_thread", "forked_children"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]
WORDS = r"^(?:\S+\s+){0,49}\S+$"
SCHEMA = json.dumps({"type": "string", "pattern": WORDS, "maxLength": 500})
PARAMS = SamplingParams(
    temperature=0.9,
    seed=3,
    max_tokens=400,
    output_kind=OutputKind.CUMULATIVE,
    structured_output=StructuredOutput(json=SCHEMA),
)
STORY = "Once upon a time there was a little girl. "
NUM_TOKENS = 60  # of the stream when the engine is killed


@pytest.fixture
def engine() -> Iterator[AsyncLLM]:
    made = AsyncLLM(EngineConfig(model="demo", device="cpu", dtype="float32", worker="torch"))
    yield made
    made.shutdown()


async def answer(engine: AsyncLLM, name: str, *, is_killed: bool = False) -> CompletionOutput:
    """The answer; with `is_killed`, of an engine that is killed once it has `NUM_TOKENS` tokens."""
    last = None
    async for output in engine.generate(STORY, PARAMS, name, cache_salt=name):
        last = output.outputs[0]
        if is_killed and len(last.token_ids) >= NUM_TOKENS:
            is_killed = False
            os.kill(engine.engine_pids["engine 0"], signal.SIGKILL)
    assert last is not None
    assert not is_killed
    return last


def test_stream_and_later_requests_continue_after_a_kill(engine):
    async def main() -> tuple[CompletionOutput, list[CompletionOutput]]:
        expected = await answer(engine, "alone")
        killed = await answer(engine, "killed", is_killed=True)
        later = await asyncio.gather(*(answer(engine, f"later {number}") for number in range(3)))
        return expected, [killed, *later]

    expected, found = asyncio.run(main())
    assert expected.finish_reason == "stop"
    assert re.fullmatch(WORDS, json.loads(expected.text))
    assert [each.token_ids for each in found] == [expected.token_ids] * 4
    assert {each.finish_reason for each in found} == {"stop"}
