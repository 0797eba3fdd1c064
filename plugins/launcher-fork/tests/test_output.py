"""Lines that plugins print in an engine's process begin with the engine's name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams

PRINTING = """
import os
import sys

from tenonry_scheduler_batching import SchedulingPolicy


class Printing(SchedulingPolicy):
    def order(self, request):
        print("queued", request.arrival)
        print("one\\ntwo", end="", file=sys.stderr)
        print(" three", file=sys.stderr)
        os.write(1, b"from C\\n")
        return request.arrival
"""


@pytest.mark.nightly
@pytest.mark.integration
def test_what_a_policy_prints_has_the_name_of_its_engine(tmp_path: Path, capfd):
    policy = tmp_path / "printing.py"
    policy.write_text(PRINTING)
    engine = AsyncLLM(EngineConfig(model="demo", scheduling_policy=f"{policy}:Printing"))

    async def main() -> None:
        params = SamplingParams(max_tokens=2, temperature=0)
        async for _ in engine.generate([5, 6], params, "r"):
            pass

    try:
        asyncio.run(main())
    finally:
        engine.shutdown()
    out, err = capfd.readouterr()
    assert {"[engine 0] queued 1\n", "[engine 0] from C\n"} <= set(out.splitlines(keepends=True))
    assert {"[engine 0] one\n", "[engine 0] two three\n"} <= set(err.splitlines(keepends=True))
    assert err.count("[engine 0] engine 0 of tenonry") == 1  # a line of the log stays as it is
    assert "[engine 0] I " not in err
