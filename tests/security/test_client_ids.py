"""Ids that clients choose select nothing but their own request (class S): no prefix, no empty id, no shared one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import RequestError

IDS = (
    "job",
    "job-1",
    "job-10",
    "job-1 ",
    "JOB-1",
    "0",
    "job-1\x00",
    "*",
    "%",
    ".*",
    "cmpl-job-1",
    "a" * 256,
)
LONG = SamplingParams(max_tokens=500, ignore_eos=True, detokenize=False)


@pytest.fixture
def engine() -> Iterator[AsyncLLM]:
    made = AsyncLLM.from_config(
        EngineConfig(model="demo", worker="null", io_processor=None, max_num_seqs=64)
    )
    yield made
    made.shutdown()


async def run_all(engine: AsyncLLM, chosen: str) -> dict[str, str | None]:
    """Start one stream per id, abort `chosen` once all run, then all others; return how each ended."""
    ends: dict[str, str | None] = {}
    running: set[str] = set()
    all_run = asyncio.Event()

    async def read(name: str) -> None:
        async for output in engine.generate({"prompt_token_ids": [1, 2]}, LONG, name):
            ends[name] = output.outputs[0].finish_reason
            running.add(name)
            if len(running) == len(IDS):
                all_run.set()

    tasks = [asyncio.create_task(read(name)) for name in IDS]
    await all_run.wait()
    await engine.abort(chosen)
    seen = {name for name, reason in ends.items() if reason == "abort"}
    await asyncio.gather(*tasks)
    ends["aborted at once"] = ",".join(sorted(seen))
    return ends


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("chosen", ["job-1", "job", "*", ".*", "a" * 256])
def test_an_abort_ends_the_request_of_exactly_this_id(engine, chosen):
    ends = asyncio.run(run_all(engine, chosen))
    aborted = {name for name in IDS if ends[name] == "abort"}
    assert aborted == {chosen}


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("unknown", ["", "j", "job-", "job-100", "job-1\n", "None", "\x00"])
def test_an_abort_of_an_unknown_id_ends_nothing(engine, unknown):
    ends = asyncio.run(run_all(engine, unknown))
    assert {name for name in IDS if ends[name] == "abort"} == set()


def test_a_shared_id_is_refused(engine):
    async def twice() -> None:
        first = engine.generate({"prompt_token_ids": [1]}, LONG, "same")
        await anext(first)
        with pytest.raises(RequestError, match="request id 'same' is in use"):
            await anext(engine.generate({"prompt_token_ids": [1]}, LONG, "same"))
        await first.aclose()

    asyncio.run(twice())


def test_equal_header_ids_of_two_clients_are_two_requests(door):
    """`X-Request-Id` is echoed, and selects nothing."""
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 3}).encode()
    headers = {"content-type": "application/json", "X-Request-Id": "same"}
    answers = [door.send("POST", "/v1/completions", body, headers) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200] * 3
    assert all(found["x-request-id"] == "same" for _, found, _ in answers)
    assert len({json.loads(text)["id"] for _, _, text in answers}) == 3
