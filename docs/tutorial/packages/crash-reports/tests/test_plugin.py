"""The conformance suite of engine recoveries, and the report of an engine that was killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from tenonry import AsyncLLM, EngineConfig, SamplingParams
from tenonry.config import PluginChoice
from tenonry.errors import EngineDeadError
from tenonry_testkit.engine_recovery import EngineRecoveryContract

RECOVERY = "crash_reports.plugin:CrashReports"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written below `tmp_path`."""
    monkeypatch.chdir(tmp_path)


class TestCrashReports(EngineRecoveryContract):
    recovery = RECOVERY


def test_a_killed_engine_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    choice = PluginChoice(name=RECOVERY, options={"folder": str(folder)})
    llm = AsyncLLM(EngineConfig(model="demo", worker="null", engine_recovery=choice))

    async def main() -> None:
        params = SamplingParams(max_tokens=1000, ignore_eos=True, detokenize=False)
        stream = llm.generate([5], params, "mine")
        await anext(stream)
        os.kill(llm.engine_pids["engine 0"], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass

    try:
        asyncio.run(main())
    finally:
        llm.shutdown()
    (file,) = folder.iterdir()
    report = json.loads(file.read_text("utf-8"))
    assert (report["engine"], report["exit_code"]) == (0, -signal.SIGKILL)
    (request,) = report["requests"]
    assert (request["request_id"], request["prompt_tokens"]) == ("mine", 1)
    assert request["output_tokens"] > 0
