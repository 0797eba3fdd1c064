"""Engines of two nodes behind one server: the headless node's is killed, and every stream continues (AF-24)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from many_servers import SLOW, on_each_server, texts
from server_process import TORCH_CACHE, Server, eventually

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.transport.keys import CurveKeys
from tenonry_testkit.kernel.forked import ForkedCommand
from tenonry_testkit.processes import free_port

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("forked_children", "one_thread")]
MODEL: dict[str, Any] = {"model": "demo", "device": "cpu", "dtype": "float32"}
SOME_TOKENS = 4
PROMPTS = [f"Once upon a time there were {number}" for number in range(16)]
SAMPLINGS = [
    SamplingParams(temperature=0, max_tokens=100, ignore_eos=True),
    SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=100, ignore_eos=True),
    SamplingParams(temperature=0, presence_penalty=1.5, max_tokens=100, ignore_eos=True),
]


class Node:
    """`tenonry serve --headless` with one engine."""

    def __init__(self, *words: str) -> None:
        self.process = ForkedCommand(
            [sys.executable, "-m", "tenonry", "serve", *words, "--headless"],
            env={**TORCH_CACHE, **os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def engine(self) -> psutil.Process:
        (engine,) = (
            child
            for child in psutil.Process(self.process.pid).children()
            if child.cmdline()[0].startswith("tenonry: engine")
        )
        return engine

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def layout(tmp_path: Path) -> dict[str, Any]:
    """Settings of both nodes: the front end has engine 0, the other one engine 1."""
    keys = tmp_path / "keys.txt"
    keys.write_text(CurveKeys.generate().encode())
    keys.chmod(0o600)
    return {
        "data_parallel_size": 2,
        "data_parallel_size_local": 1,
        "data_parallel_rpc_port": free_port(),
        "auth_key_file": str(keys),
    }


def flags(layout: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in layout.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


@pytest.fixture
def node() -> Iterator[Any]:
    """`node(words)`: starts one; it is killed in the end, if it runs."""
    nodes: list[Node] = []

    def start(*words: str) -> Node:
        nodes.append(Node(*words, "--data-parallel-start-rank", "1"))
        return nodes[-1]

    yield start
    for each in nodes:
        each.close()


async def stream(
    engine: AsyncLLM, number: int, has_some: asyncio.Event, rank: int | None
) -> list[int]:
    """`has_some` is set with a few tokens, and at the end in any case: who waits for it cannot miss it."""
    params = SAMPLINGS[number % len(SAMPLINGS)]
    found: list[int] = []
    try:
        async for output in engine.generate(
            PROMPTS[number], params, f"r{number}", data_parallel_rank=rank
        ):
            found = list(output.outputs[0].token_ids)
            if len(found) >= SOME_TOKENS:
                has_some.set()
    finally:
        has_some.set()
    return found


async def begun(engine: AsyncLLM) -> asyncio.Future[list[list[int]]]:
    """All streams, which have some tokens each. Every other one requests the engine of the headless node."""
    progress = [asyncio.Event() for _ in PROMPTS]
    ranks = [1 if number % 2 else None for number in range(len(PROMPTS))]
    running = [stream(engine, i, progress[i], rank) for i, rank in enumerate(ranks)]
    gathered = asyncio.gather(*running)
    await asyncio.gather(*(event.wait() for event in progress))
    return gathered


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """The tokens of each stream, from one engine in this process."""
    params = [SAMPLINGS[number % len(SAMPLINGS)] for number in range(len(PROMPTS))]
    llm = LLM(**MODEL)
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    llm.shutdown()
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)]
)
def test_killed_engine_of_a_headless_node_comes_back_and_its_streams_go_on(
    number, node, layout, expected
):
    """The node starts it again; one that is stopped is killed by its node after --step-timeout."""
    words = ("--device", "cpu", "--dtype", "float32", "--step-timeout", "2")
    there = node("demo", *words, *flags(layout))
    engine = AsyncLLM(EngineConfig(**MODEL, **layout, step_timeout=2.0))

    async def main() -> list[list[int]]:
        running = await begun(engine)
        before = there.engine()
        before.send_signal(number)
        found = await running
        assert there.engine().pid != before.pid
        return found

    try:
        assert asyncio.run(main()) == expected
        assert engine.is_serving
    finally:
        engine.shutdown()
    assert there.process.wait(30) == 1  # its front end is gone


@pytest.mark.nightly
def test_streams_of_several_api_servers_go_on(node, layout, start, text_model):
    """Engines of the headless node are connected to each of them again, over TCP."""
    words = ("--worker", "null", *SLOW, *flags(layout))
    there = node(str(text_model), "--load-format", "dummy", *words)
    server: Server = start(*SLOW, *flags(layout)).ready()
    streams = on_each_server(server, **{"x-data-parallel-rank": "1"})
    before = there.engine()
    before.kill()
    assert {each.end() for some in streams.values() for each in some} == {"length"}
    assert len(texts(streams)) == 1
    assert there.engine().pid != before.pid
    server.process.send_signal(signal.SIGTERM)
    assert server.end() == 0
    eventually(lambda: there.process.poll() == 1)
    assert "Traceback" not in server.output
