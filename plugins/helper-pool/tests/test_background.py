"""Work concurrent with threads that must not wait: quick work first, long work with a lower priority."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tenonry_helper_pool.background import FIRST_NICE, QUICK_S, Background, lower

STACK = 1 << 20
PATIENCE = 20


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.fixture
def background():
    return Background("test", STACK, 19)


def test_the_result_and_the_error_of_the_work(background):
    assert background.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        background.run(lambda: 1 // 0)
    assert background.run(lambda: 8) == 8


def test_stacks_of_other_threads_stay_as_they_were(background):
    before = threading.stack_size()
    background.run(lambda: None)
    assert threading.stack_size() == before


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere threads have no priority of their own"
)
def test_work_is_lowered_from_its_start_and_further_when_it_takes_long(background):
    mine = own_priority()
    release = threading.Event()
    found = []

    def slow():
        found.append(own_priority())
        release.wait(PATIENCE)
        found.append(own_priority())

    threading.Timer(10 * QUICK_S, release.set).start()
    background.run(slow)
    assert found == [max(mine, FIRST_NICE), 19]
    assert own_priority() == mine
    assert background.run(own_priority) == max(mine, FIRST_NICE)


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere threads have no priority of their own"
)
def test_what_is_lower_already_stays_so():
    found = []

    def lowered_twice():
        lower(threading.get_native_id(), 18)
        lower(threading.get_native_id(), 7)
        found.append(own_priority())

    thread = threading.Thread(target=lowered_twice)
    thread.start()
    thread.join()
    assert found == [18]


def test_quick_work_does_not_stand_behind_slow_work(background):
    started = threading.Event()
    release = threading.Event()

    def slow():
        started.set()
        return release.wait(PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(background.run, slow)
        assert started.wait(PATIENCE)
        assert background.run(lambda: "quick") == "quick"
        assert not running.done()
        release.set()
        assert running.result(PATIENCE)
