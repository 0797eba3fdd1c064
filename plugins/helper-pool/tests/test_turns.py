"""Slots: bounded in number, one of them for short jobs; bounded per client; all are released."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenonry.errors import DrainingError, QueueFullError
from tenonry_helper_pool import turns as turns_module
from tenonry_helper_pool.client import as_client, current_client
from tenonry_helper_pool.turns import Turns

SHORT, LONG = 1, 100


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Jobs:
    """Jobs in threads of their own, which run until they are released. `begun`: their names, in order."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._release: dict[str, threading.Event] = {}
        self._threads = ThreadPoolExecutor(64)

    def start(self, client: str, name: str, cost: int):
        """Returns once the job waits, runs, or was rejected."""
        before = self.turns.stats
        self._release[name] = threading.Event()
        future = self._threads.submit(self._run, client, name, cost)
        until(lambda: future.done() or self._is_known(before))
        return future

    def _is_known(self, before) -> bool:
        now = self.turns.stats
        return now.num_waiting + now.num_running > before.num_waiting + before.num_running

    def _run(self, client: str, name: str, cost: int) -> None:
        with as_client(client), self.turns.hold(cost) as turn:
            self.begun.append(name)
            self._release[name].wait(20)
            if not self.turns.may_go_on(turn):
                self.turns.restart(turn)
                self.begun.append(f"{name} again")

    def wait_for(self, *names: str) -> None:
        until(lambda: set(names) <= set(self.begun))

    def release(self, *names: str) -> None:
        for name in names:
            self._release[name].set()

    def close(self) -> None:
        self.release(*self._release)
        self._threads.shutdown()


@pytest.fixture
def jobs():
    made = Jobs(Turns("test", 10, size=2))
    yield made
    made.close()


def test_long_jobs_leave_a_slot_to_short_ones_of_others(jobs):
    for number in range(8):
        jobs.start("a", f"long {number}", LONG)
    jobs.wait_for("long 0")
    assert (jobs.turns.stats.num_running, jobs.turns.stats.num_waiting) == (1, 7)
    jobs.start("b", "short", SHORT)
    jobs.wait_for("short")
    assert jobs.begun == ["long 0", "short"]


def test_a_short_job_that_turns_out_long_keeps_its_slot_or_starts_again(jobs):
    first = jobs.start("a", "first", SHORT)
    jobs.start("a", "second", SHORT)
    jobs.wait_for("first", "second")
    jobs.release("first")  # no long job runs: it may continue, and ends
    first.result(20)
    jobs.start("a", "long", LONG)
    jobs.wait_for("long")
    jobs.release("second")
    until(lambda: jobs.turns.stats.num_restarted)
    jobs.start("b", "short", SHORT)
    jobs.wait_for("short")  # the slot of the second is free immediately
    assert "second again" not in jobs.begun
    jobs.release("long")
    jobs.wait_for("second again")


def test_numbers_are_totals_and_reported_at_each_change():
    now = [100.0]
    reported = []
    turns = Turns("test", 10, size=2, report=reported.append, clock=lambda: now[0])
    with turns.hold(1):
        now[0] = 103.0
    stats = turns.stats
    assert [each.num_running for each in reported] == [0, 1, 0]
    assert reported[-1] == stats
    assert (stats.helper, stats.num_jobs, stats.busy_s, stats.waiting_s) == ("test", 1, 3.0, 0.0)
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_a_job_that_fails_gives_its_slot_back():
    turns = Turns("test", 10, size=2)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), turns.hold(1):
            _ = 1 // 0
    assert turns.stats.num_running == 0


def test_a_client_has_a_bound_and_others_pass(jobs, monkeypatch):
    monkeypatch.setattr(turns_module, "MAX_PER_CLIENT", 3)
    for number in range(3):
        jobs.start("a", f"a {number}", SHORT)
    with pytest.raises(QueueFullError, match="3 jobs of this client wait for 'test'"):
        jobs.start("a", "a 3", SHORT).result(20)
    jobs.start("b", "b", SHORT)
    assert jobs.turns.stats.num_refused == 1
    monkeypatch.setattr(turns_module, "MAX_JOBS", 4)
    with pytest.raises(QueueFullError, match="4 jobs wait for 'test'"):
        jobs.start("c", "c", SHORT).result(20)


def test_jobs_that_wait_are_refused_when_it_closes(jobs):
    running = [jobs.start("a", f"{number}", SHORT) for number in range(2)]
    waiting = [jobs.start("a", f"{number}", SHORT) for number in range(2, 5)]
    jobs.turns.close()
    for future in waiting:
        with pytest.raises(DrainingError, match="takes no more jobs"):
            future.result(20)
    with pytest.raises(DrainingError):
        jobs.start("b", "late", SHORT).result(20)
    jobs.release("0", "1")
    for future in running:
        future.result(20)
    assert jobs.turns.stats.num_waiting == jobs.turns.stats.num_running == 0


def test_one_slot_cannot_be_fair():
    with pytest.raises(ValueError, match="at least 2"):
        Turns("test", 10, size=1)


def test_without_a_client_each_request_is_one():
    assert current_client() != current_client()
    with as_client("key 1"):
        assert current_client() == "key 1"
    assert current_client() != "key 1"
