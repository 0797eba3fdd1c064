"""The pool of ranks that other tests compute with: handling of a rank that fails. Test process and forks of it."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from pathlib import Path

import pytest


@pytest.fixture
def rank_pool():
    """A copy of the module, whose executor no other test uses."""
    spec = importlib.util.spec_from_file_location(
        "rank_pool_under_test", Path(__file__).with_name("rank_pool.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pool(rank_pool, monkeypatch):
    """Three ranks that fail or wait on request."""

    def fail(_self, is_failing: bool) -> None:
        if is_failing:
            raise ValueError("no such layer")
        time.sleep(60)

    monkeypatch.setattr(rank_pool.Served, "fail", fail, raising=False)
    monkeypatch.setattr(rank_pool.Served, "pid", lambda _self: os.getpid(), raising=False)
    made = rank_pool.Pool(3)
    yield made
    if made.pipes[0].closed:
        return
    made.kill()
    made.close()


def test_ranks_that_wait_for_one_that_failed_are_killed_and_its_traceback_is_the_error(
    rank_pool, pool, monkeypatch
):
    monkeypatch.setattr(rank_pool, "AFTER_A_FAILURE_S", 0.2)
    start = time.monotonic()
    with pytest.raises(
        rank_pool.RankError, match=r"(?s)^rank 1: Traceback .*ValueError: no such l"
    ):
        pool.ask(3, "fail", each=[False, True, False])
    assert pool.close() == -signal.SIGKILL
    assert time.monotonic() - start < 30


def test_ranks_that_fail_alike_live_on(rank_pool, pool, monkeypatch):
    monkeypatch.setattr(rank_pool, "AFTER_A_FAILURE_S", 20.0)
    with pytest.raises(rank_pool.RankError, match=r"rank [01]: "):
        pool.ask(2, "fail", True)
    assert pool.ask(3, "pid") == pool.pids
    assert pool.close() == 0


def test_a_rank_that_ends_is_named(rank_pool, pool):
    os.kill(pool.pids[2], signal.SIGKILL)
    with pytest.raises(rank_pool.RankError, match="rank 2: it ended without an answer"):
        pool.answers(3)
    assert pool.close() == -signal.SIGKILL
