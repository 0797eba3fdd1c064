"""`tenonry plugins dev` on a server: the saved file is checked, and swapped under streams, of which none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from many_servers import Stream

KEY = "secret"
SCHEDULER = """
from tenonry_scheduler_batching.scheduler import BatchingScheduler
class Mine(BatchingScheduler):
    NOTE = 0
"""


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_saved_scheduler_is_swapped_under_streams(serve, tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(SCHEDULER)
    flags = ["--api-key", KEY, "--enable-operator-routes", "--max-num-seqs", "80"]
    server = serve(*flags, "--worker-option", "step_ms=10", "--scheduler", f"{file}:Mine").ready()
    headers = {"authorization": f"Bearer {KEY}"}
    streams = [Stream(server, 800).begin(**headers) for _ in range(64)]
    file.write_text(SCHEDULER.replace("0", "1"))
    command = [sys.executable, "-m", "tenonry", "plugins", "dev", str(file), "--once"]
    done = subprocess.run(
        [*command, "--url", server.url],
        env={**os.environ, "TENONRY_API_KEY": KEY},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict, swapped = done.stdout.splitlines()
    assert verdict.startswith("holds: ")
    assert swapped.startswith("swapped in ")
    assert "TTFT" in swapped
    assert list(server.pids()) == ["engine 0 epoch 2"]
    assert {stream.end() for stream in streams} == {"length"}
