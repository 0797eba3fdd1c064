"""Threads of an event loop: fair between clients, few at a time, none held by a job that waits."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future

import pytest

from tenonry.errors import QueueFullError
from tenonry_helper_pool.client import as_client, current_client
from tenonry_helper_pool.threads import FairThreads, lent_slot
from tenonry_helper_pool.turns import MAX_PER_CLIENT


@pytest.fixture
def threads():
    with FairThreads(size=3) as made:
        yield made


class Gate:
    """Calls that wait until it opens, without lending their slot."""

    def __init__(self) -> None:
        self.open = threading.Event()

    def wait(self, value: object = None) -> object:
        assert self.open.wait(20)
        return value


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


def submit(threads: FairThreads, client: str, function, *args) -> Future:
    with as_client(client):
        return threads.submit(function, *args)


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_one_client_leaves_a_slot_to_others(threads, gate):
    heavy = [submit(threads, "a", gate.wait, number) for number in range(20)]
    until(lambda: threads.stats.num_running == 2)
    assert submit(threads, "b", current_client).result(20) != ""
    assert threads.stats.num_waiting == 18
    gate.open.set()
    assert [each.result(20) for each in heavy] == list(range(20))
    assert (threads.stats.num_waiting, threads.stats.num_running) == (0, 0)
    assert threads.stats.num_jobs == 21


def test_clients_alternate(gate):
    order: list[str] = []
    with FairThreads(size=1) as threads:
        holder = submit(threads, "x", gate.wait)
        until(lambda: threads.stats.num_running == 1)
        later = [submit(threads, "a", order.append, "a") for _ in range(10)]
        later.append(submit(threads, "b", order.append, "b"))
        gate.open.set()
        for each in [holder, *later]:
            each.result(20)
    assert order == ["a", "b", *"a" * 9]


def test_jobs_that_wait_lend_their_slots(threads, gate):
    def wait() -> str:
        with lent_slot():
            gate.wait()
        return "waited"

    waiting = [submit(threads, "a", wait) for _ in range(10)]
    assert submit(threads, "a", str, 1).result(20) == "1"
    until(lambda: threads.stats.num_running == 0)
    gate.open.set()
    assert [each.result(20) for each in waiting] == ["waited"] * 10
    assert threads.stats.num_jobs == 11


def test_a_job_that_waited_takes_a_slot_again(threads, gate):
    other = Gate()
    most: list[int] = []

    def wait() -> None:
        with lent_slot():
            gate.wait()
        most.append(threads.stats.num_running)
        other.wait()

    jobs = [submit(threads, str(number), wait) for number in range(6)]
    until(lambda: threads.stats.num_running == 0 and threads.stats.num_waiting == 0)
    gate.open.set()
    until(lambda: len(most) == 3 and threads.stats.num_waiting == 3)
    other.open.set()
    for each in jobs:
        each.result(20)
    assert max(most) <= 3


def test_work_of_no_client_is_neither_bounded_nor_counted(threads, gate):
    own = [threads.submit(gate.wait, number) for number in range(10)]
    assert submit(threads, "a", str, 1).result(20) == "1"
    gate.open.set()
    assert [each.result(20) for each in own] == list(range(10))
    assert threads.stats.num_jobs == 1


def test_a_client_with_too_many_jobs_is_refused(threads, gate):
    jobs = [submit(threads, "a", gate.wait) for _ in range(MAX_PER_CLIENT)]
    with pytest.raises(QueueFullError, match=f"{MAX_PER_CLIENT} jobs of this client"):
        submit(threads, "a", gate.wait)
    assert submit(threads, "b", str, 1).result(20) == "1"
    assert threads.stats.num_refused == 1
    assert jobs[-1].cancel()  # its client has left, and another one has room
    jobs[-1] = submit(threads, "a", gate.wait)
    gate.open.set()
    for each in jobs:
        each.result(20)


def test_errors_reach_the_caller(threads):
    def fail() -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        submit(threads, "a", fail).result(20)
    assert submit(threads, "a", str, 1).result(20) == "1"


def test_as_the_executor_of_a_loop_it_knows_the_client_of_a_task():
    reports = []
    threads = FairThreads(size=3)

    async def request(client: str) -> str:
        with as_client(client):
            return await asyncio.to_thread(current_client)

    async def main() -> list[str]:
        asyncio.get_running_loop().set_default_executor(threads)
        threads.report_to(reports.append)
        return await asyncio.gather(*map(request, "abc"))

    assert asyncio.run(main()) == ["a", "b", "c"]
    assert reports[-1].num_jobs == 3
    assert reports[-1].helper == "threads"


def test_shutdown_cancels_jobs_that_wait_and_wakes_those_that_resume(gate):
    threads = FairThreads(size=2)
    other = Gate()

    def wait() -> str:
        with lent_slot():
            gate.wait()
        return "resumed"

    resuming = submit(threads, "a", wait)
    until(lambda: threads.stats.num_running == 0)
    holders = [submit(threads, client, other.wait, client) for client in "bc"]
    until(lambda: threads.stats.num_running == 2)
    waiting = submit(threads, "d", str, 1)
    gate.open.set()
    until(lambda: threads.stats.num_waiting == 2)
    ending = threading.Thread(target=threads.shutdown)
    ending.start()
    assert resuming.result(20) == "resumed"
    until(waiting.cancelled)
    other.open.set()
    ending.join(20)
    assert [each.result(0) for each in holders] == ["b", "c"]
    with pytest.raises(RuntimeError, match="shutdown"):
        submit(threads, "a", str, 1)
