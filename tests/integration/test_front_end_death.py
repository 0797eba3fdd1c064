"""SIGKILL of the front end: the engine ends with it, and nothing is left behind (fault 12)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil

PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from tenonry import AsyncLLM, EngineConfig, SamplingParams

    engine = AsyncLLM(EngineConfig(
        model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True,
        worker={"name": "null", "options": {"step_ms": 20}},
    ))

    async def main():
        params = SamplingParams(max_tokens=400, temperature=0, ignore_eos=True)
        told = False
        async for _ in engine.generate([1, 2, 3], params, "r"):
            if not told:
                print(*engine.engine_pids.values(), flush=True)
                told = True

    asyncio.run(main())
    """
)


def start(model: Path, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A user's program in the middle of a stream, and the processes of its engines."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(model)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert program.stdout is not None
    return program, [int(pid) for pid in program.stdout.readline().split()]


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_engine_ends_with_a_killed_front_end(weightless_model, tmp_path):
    """Q6: the parent gets no chance to say goodbye."""
    sockets = tmp_path / "t"
    sockets.mkdir()
    program, engines = start(weightless_model, sockets)
    assert len(engines) == 1
    program.kill()
    program.wait(10)
    program.stdout.close()
    assert gone_within(engines, 5.0)
    assert list(sockets.iterdir()) == []


def test_stopped_engine_is_killed_with_its_front_end(weightless_model, tmp_path):
    """Even an engine that cannot run a line of Python does not outlive its front end."""
    program, engines = start(weightless_model, tmp_path)
    os.kill(engines[0], signal.SIGSTOP)
    program.kill()
    program.wait(10)
    program.stdout.close()
    assert gone_within(engines, 5.0)
