"""A server that has few file descriptors serves its clients one after another (reliability, fault 29)."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

pytestmark = pytest.mark.timeout(120)
CLIENTS = 40
SPARE = 10  # descriptors beyond those of an idle server


def test_more_clients_than_file_descriptors_are_all_served(serve):
    server = serve("--worker-option", "step_ms=5").ready()
    pid = server.process.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    few = psutil.Process(pid).num_fds() + SPARE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, hard))

    def ask(number: int) -> int:
        with server.client() as client:
            chunks = client.completions.create(
                model="tiny",
                prompt=f"{number}",
                max_tokens=50,
                stream=True,
                extra_body={"ignore_eos": True},
                stream_options={"include_usage": True},
            )
            return sum(chunk.usage.completion_tokens for chunk in chunks if chunk.usage)

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(ask, range(CLIENTS))) == [50] * CLIENTS
    assert server.get("/health")[0] == 200
    assert server.get("/ready")[0] == 200
    server.process.terminate()
    assert server.end() == 0
