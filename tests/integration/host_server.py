"""A server of several models, from a file that names them. Test process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psutil
from server_process import Server

# A worker that computes nothing, where processes are the subject.
NULL = ("--worker", "null", "--worker-option", "step_ms=2")
MODELS = """
max_num_seqs: 4
kv_cache_memory_bytes: 16000000
models:
  tiny: {model: demo}
  other: {model: demo, dtype: float32}
"""


class HostServer(Server):
    """A server of the models of a file. No fork of this process: it starts engines in threads, next to others."""

    @staticmethod
    def words(model: Path) -> list[str]:
        command = [sys.executable, "-m", "tenonry", "serve", "--config", str(model)]
        return [*command, "--port", "0", "--device", "cpu"]

    def statuses(self) -> dict[str, str]:
        with self.client() as client:
            return {model.id: model.status for model in client.models.list()}

    def complete(self, model: str, **fields: object) -> str:
        with self.client() as client:
            answer = client.completions.create(model=model, prompt="Once", max_tokens=8, **fields)
        return answer.choices[0].text

    def engine_pids(self) -> list[int]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        titles = {}
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                titles[child.pid] = " ".join(child.cmdline())
        return [pid for pid, title in titles.items() if title.startswith("tenonry: engine")]
