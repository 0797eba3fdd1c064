"""SIGKILL of the top process in every layout: nothing survives it, and nothing is left behind (fault 12)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from server_process import eventually

from tenonry_testkit.tiers import nightly_unless

PROGRAM = textwrap.dedent(
    """
    import asyncio, json, sys
    from tenonry import AsyncLLM, EngineConfig, SamplingParams
    from tenonry.client.engines import OwnedEngines

    config = EngineConfig(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True,
        worker={"name": "null", "options": {"step_ms": 20}}, **json.loads(sys.argv[2]),
    )
    engine = AsyncLLM(config, engines=OwnedEngines(config, coordinated="coordinator" in sys.argv[3:]))

    async def stream(number):
        params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
        told = False
        async for _ in engine.generate([1, 2, 3], params, f"r{number}"):
            if not told:
                print(number, flush=True)
                told = True

    async def main():
        await asyncio.gather(*(stream(number) for number in range(4)))

    asyncio.run(main())
    """
)
MP = {"executor": "mp"}
USUAL = {"both", "with a coordinator", "with standbys"}  # each holds one of the others
LAYOUTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one engine": ({}, ["engine 0"]),
    "tensor parallel": (
        {**MP, "tensor_parallel_size": 2},
        ["engine 0", "worker 0.0", "worker 0.1"],
    ),
    "data parallel": ({"data_parallel_size": 2}, ["engine 0", "engine 1"]),
    "with a coordinator": ({"data_parallel_size": 2}, ["coordinator", "engine 0", "engine 1"]),
    "with standbys": ({"standby_engines": 2}, ["engine 0", "standby 1", "standby 2"]),
    "both": (
        {**MP, "data_parallel_size": 2, "tensor_parallel_size": 2},
        ["engine 0", "engine 1", "worker 0.0", "worker 0.1", "worker 1.0", "worker 1.1"],
    ),
}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name; under pytest's own the path of a socket would be too long."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        yield Path(folder)


def title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return (process.cmdline() or [""])[0]
    return ""


@contextmanager
def program(
    model: Path, folder: Path, layout: str
) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A user's program in the middle of its streams, and all processes under it."""
    values, titles = LAYOUTS[layout]
    command = [sys.executable, "-c", PROGRAM, str(model), json.dumps(values)]
    if "coordinator" in titles:
        command.append("coordinator")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)}
    ) as running:
        try:
            assert running.stdout is not None
            assert sorted(running.stdout.readline() for _ in range(4)) == [
                "0\n",
                "1\n",
                "2\n",
                "3\n",
            ]
            wanted = [f"tenonry: {title}" for title in titles]
            top = psutil.Process(running.pid)
            eventually(lambda: sorted(map(title, top.children(recursive=True))) == wanted)
            if "standby_engines" in values:  # the last one has been let in
                eventually(lambda: list(folder.iterdir()) == [])
            yield running, top.children(recursive=True)
        finally:
            running.kill()


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("layout", nightly_unless(lambda name: name in USUAL, LAYOUTS))
def test_nothing_survives_a_killed_front_end(weightless_model, short_folder, layout):
    """Q6: the parent cannot run any clean-up."""
    with program(weightless_model, short_folder, layout) as (running, children):
        running.kill()
        running.wait(10)
        _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert list(short_folder.iterdir()) == []


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("layout", ["one engine", "tensor parallel"])
def test_even_stopped_processes_end_with_their_front_end(weightless_model, short_folder, layout):
    """A process that cannot run a line of Python does not outlive its front end either."""
    with program(weightless_model, short_folder, layout) as (running, children):
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        running.kill()
        running.wait(10)
        _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
