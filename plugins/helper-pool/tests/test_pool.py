"""Jobs in processes: answered, bounded, isolated; nothing is left of a pool that was closed, or whose owner is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from tenonry.errors import DrainingError
from tenonry_helper_pool.client import as_client
from tenonry_helper_pool.pool import HelperPool, HelperUnavailable, LimitExceeded, Limits, Workers

pytestmark = pytest.mark.integration

HANDLERS = '''
import os, threading, time
from tenonry_helper_pool.handler import Handler, HandlerError


class Jobs(Handler):
    """Does what the job says."""

    def __init__(self, setup):
        self.setup = setup
        if setup == b"bad":
            raise HandlerError("no such thing: bad")
        if setup == b"worse":
            raise KeyError("worse")
        if setup == b"dies":
            os._exit(3)

    def facts(self):
        return b"facts of " + self.setup

    def work(self, body):
        word, _, rest = bytes(body).decode().partition(" ")
        return [part.encode() for part in getattr(self, word)(rest)]

    def echo(self, rest):
        return [rest, "!"]

    def pid(self, rest):
        return [str(os.getpid())]

    def spin(self, rest):
        end = time.process_time() + float(rest)
        while time.process_time() < end:
            pass
        return ["spun"]

    def sleep(self, rest):
        time.sleep(float(rest))
        return ["slept"]

    def eat(self, rest):
        try:
            return [str(len(bytearray(int(rest))))]
        except MemoryError:
            return ["no memory"]

    def crash(self, rest):
        if rest:
            with open(rest, "a") as file:
                file.write("x")
        os.abort()

    def fail(self, rest):
        raise ValueError("on purpose")

    def nest(self, rest):
        def deeper(n):
            return 0 if n == 0 else 1 + max(map(deeper, [n - 1]))
        return [str(deeper(int(rest)))]


class Threaded(Jobs):
    """Cannot be forked."""

    def __init__(self, setup):
        super().__init__(setup)
        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "helper_handlers.py").write_text(HANDLERS)
    monkeypatch.syspath_prepend(tmp_path)
    return "helper_handlers"


@pytest.fixture
def make(module):
    made = []

    def pool(handler="Jobs", setup=b"", size=2, short_cost=100, **limits):
        workers = Workers(
            "test", f"{module}:{handler}", setup, Limits(**{"seconds": 5.0, **limits})
        )
        made.append(HelperPool("test", workers, short_cost=short_cost, size=size))
        return made[-1]

    yield pool
    for each in made:
        each.close()


def run(pool: HelperPool, text: str, cost: int = 1) -> str:
    return bytes(pool.run(text.encode(), cost=cost)).decode()


def in_thread(function, *args) -> tuple[threading.Thread, list]:
    outcome: list = []

    def call() -> None:
        try:
            outcome.append(function(*args))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return thread, outcome


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestJobs:
    def test_they_are_answered_by_a_fork_that_is_used_again(self, make):
        pool = make(setup=b"this")
        assert pool.facts() == b"facts of this"
        assert run(pool, "echo abc") == "abc!"
        assert run(pool, "pid") == run(pool, "pid")

    def test_large_answers_come_whole(self, make):
        text = "x" * 3_000_000
        assert run(make(), f"echo {text}") == f"{text}!"

    def test_a_worker_of_a_long_job_is_not_used_again(self, make):
        pool = make()
        before = run(pool, "pid")
        assert run(pool, "spin 0.3") == "spun"
        assert run(pool, "pid") != before

    def test_a_process_that_cannot_be_forked_is_the_worker(self, make):
        pool = make("Threaded", setup=b"this")
        assert pool.facts() == b"facts of this"
        first = run(pool, "pid")
        assert run(pool, "pid") == first
        with pytest.raises(LimitExceeded):
            run(pool, "crash")
        assert run(pool, "pid") != first

    def test_a_wall_clock_that_is_longer_than_short_is_no_long_job(self, make):
        """Short is processor time: a job that waits for a processor is not moved behind long ones."""
        pool = make()
        assert run(pool, "sleep 0.3") == "slept"
        assert pool.stats.num_restarted == 0


class TestLimits:
    def test_processor_time(self, make):
        pool = make(seconds=0.3)
        with pytest.raises(LimitExceeded):
            run(pool, "spin 60")
        assert run(pool, "echo a") == "a!"
        assert (pool.stats.num_timeouts, pool.stats.num_jobs) == (1, 2)

    def test_the_clock(self, make):
        pool = make(seconds=0.2, wall_s=0.4)
        with pytest.raises(LimitExceeded):
            run(pool, "sleep 60")

    def test_a_process_that_stood_still_is_not_late(self, make):
        pool = make(seconds=1.0)
        pid = int(run(pool, "pid"))
        os.kill(pid, signal.SIGSTOP)
        wake = threading.Timer(1.5, os.kill, (pid, signal.SIGCONT))
        wake.start()
        assert run(pool, "pid") == str(pid)
        wake.join()

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel bounds no data")
    def test_memory(self, make):
        pool = make(memory_bytes=300 << 20)
        assert run(pool, f"eat {100 << 20}") == str(100 << 20)
        assert run(pool, f"eat {400 << 20}") == "no memory"

    def test_a_stack(self, make):
        pool = make(stack_bytes=256 << 10)
        with pytest.raises(LimitExceeded):
            run(pool, "nest 900")

    def test_a_crash_costs_its_job(self, make, capfd):
        pool = make()
        for word in ("crash", "fail"):
            with pytest.raises(LimitExceeded):
                run(pool, word)
        assert "a job failed in 'Jobs'" in capfd.readouterr().err
        assert run(pool, "echo a") == "a!"


class TestFairness:
    """Fault 22."""

    def test_a_short_job_runs_beside_long_ones_of_another_client(self, make):
        pool = make(seconds=600.0)
        run(pool, "echo warm")
        threads = []
        for _ in range(8):
            with as_client("a"):
                thread, _ = in_thread(run_as, "a", pool, "spin 500", 1)
            threads.append(thread)
        # Each of the eight was tried as a short one; one of them runs on.
        until(lambda: pool.stats.num_restarted == 7)
        assert run_as("b", pool, "echo b", 1) == "b!"
        stats = pool.stats
        assert (stats.num_running, stats.num_waiting) == (1, 7)
        pool.close()
        for thread in threads:
            thread.join(20)

    def test_jobs_of_a_large_cost_are_never_tried_as_short(self, make):
        pool = make(seconds=600.0)
        run(pool, "echo warm")
        threads = [in_thread(run_as, "a", pool, "spin 500", 1000)[0] for _ in range(3)]
        until(lambda: pool.stats.num_waiting == 2)
        assert run_as("b", pool, "echo b", 1) == "b!"
        assert pool.stats.num_restarted == 0
        pool.close()
        for thread in threads:
            thread.join(20)


def run_as(client: str, pool: HelperPool, text: str, cost: int) -> str:
    with as_client(client):
        return run(pool, text, cost)


class TestEnds:
    def test_a_handler_that_cannot_be_built_says_why(self, make):
        for setup, message in (
            (b"bad", "no such thing: bad"),
            (b"worse", "KeyError: 'worse'"),
            (b"dies", "ended at its start"),
        ):
            for _ in range(2):
                with pytest.raises(HelperUnavailable, match=message):
                    run(make(setup=setup), "echo a")

    def test_what_runs_and_what_waits_is_refused_when_it_closes(self, make):
        pool = make(seconds=600.0, size=2)
        run(pool, "echo warm")
        calls = [in_thread(run, pool, "spin 500", 1000) for _ in range(3)]
        until(lambda: pool.stats.num_running == 1)
        pool.close()
        for thread, outcome in calls:
            thread.join(20)
            assert isinstance(outcome[0], DrainingError)
        with pytest.raises(DrainingError):
            run(pool, "echo a")
        assert helpers_of(os.getpid()) == []

    def test_the_end_of_its_processes_costs_no_job(self, make):
        pool = make(seconds=600.0)
        run(pool, "echo warm")
        (source,) = [each for each in helpers_of(os.getpid()) if not is_worker(each)]
        thread, outcome = in_thread(run, pool, "spin 1")
        until(lambda: pool.stats.num_running == 1)
        source.kill()
        thread.join(90)  # it begins anew, on a machine that may be busy
        assert outcome == ["spun"]

    def test_an_idle_worker_that_was_killed_costs_no_job(self, make):
        pool = make()
        pid = int(run(pool, "pid"))
        os.kill(pid, signal.SIGKILL)
        until(lambda: has_exited(pid))
        assert run(pool, "echo a") == "a!"

    def test_an_idle_worker_that_ends_as_it_is_taken_costs_no_job(self, module):
        """Both idle workers are gone by then; the next one is new."""
        workers = EndingWorkers("test", f"{module}:Jobs", b"", Limits(seconds=5.0))
        pool = HelperPool("test", workers, short_cost=100, size=3)
        try:
            both = [in_thread(run, pool, "sleep 0.5") for _ in range(2)]
            for thread, _ in both:
                thread.join(20)
            workers.ends = True
            assert run(pool, "echo a") == "a!"
            assert workers.num_ended == 1
            assert pool.stats.num_timeouts == 0
        finally:
            pool.close()

    def test_a_job_that_ends_its_worker_is_tried_twice_at_most(self, module, tmp_path):
        workers = Workers("test", f"{module}:Jobs", b"", Limits(seconds=5.0))
        pool = HelperPool("test", workers, short_cost=100, size=2)
        log = tmp_path / "tries"
        try:
            run(pool, "echo warm")
            with pytest.raises(LimitExceeded):
                run(pool, f"crash {log}")
            assert log.read_text() == "x" * 2
            with pytest.raises(LimitExceeded):
                run(pool, f"crash {log}")
            assert log.read_text() == "x" * 3
        finally:
            pool.close()

    def test_processes_end_with_their_owner(self, module, tmp_path):
        """Also a worker that is busy without running Python code."""
        script = textwrap.dedent("""
            import sys, threading, time
            from tenonry_helper_pool.pool import HelperPool, Limits, Workers

            workers = Workers("test", "helper_handlers:Jobs", b"", Limits(seconds=600.0))
            pool = HelperPool("test", workers, short_cost=100, size=2)
            pool.run(b"echo a", cost=1)
            threading.Thread(target=pool.run, args=(b"spin 500",), kwargs={"cost": 1000}).start()
            while pool.stats.num_running == 0:
                time.sleep(0.01)
            print("runs", flush=True)
            time.sleep(600)
        """)
        owner = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert owner.stdout.readline() == b"runs\n"
        helpers = helpers_of(owner.pid)
        assert len(helpers) >= 2
        owner.kill()
        owner.wait()
        owner.stdout.close()
        _, alive = psutil.wait_procs(helpers, timeout=20)
        assert alive == []


class EndingWorkers(Workers):
    """An idle worker ends just as it was taken."""

    ends = False
    num_ended = 0

    def take(self, *, is_new: bool = False):
        worker = super().take(is_new=is_new)
        if self.ends and worker.is_used:
            self.num_ended += 1
            workers = [each for each in helpers_of(os.getpid()) if is_worker(each)]
            for each in workers:
                each.kill()
            until(lambda: all(has_exited(each.pid) for each in workers))
        return worker


def helpers_of(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    return [each for each in found if "helper" in title_of(each)]


def has_exited(pid):
    """Return True if a process has closed its files: it is gone, or a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_worker(process: psutil.Process) -> bool:
    return title_of(process).endswith("worker")


def title_of(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes().rstrip(b"\0 ").decode()
    except OSError:
        return ""
