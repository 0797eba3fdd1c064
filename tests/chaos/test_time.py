"""Clocks that jump and processes that are suspended: no timeout fires, and streams continue."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.slow]
HOUR_S = 3600.0
STANDSTILL_S = 3.0  # more than --step-timeout allows


def test_a_wall_clock_that_jumps_by_an_hour(serve, expected, monkeypatch):
    """Back and forth with each reading, in every process of the server; an engine dies during the run."""
    jumps = itertools.cycle([0.0, HOUR_S, -HOUR_S])
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
    disturbed = serve("engine.before_execute=kill@9", "--step-timeout", "2")
    disturbed.check(expected, disturbed.run())
    assert "Traceback" not in disturbed.server.output


def test_a_machine_that_stands_still(serve, expected):
    """As by a suspension, or a container that is paused: afterwards nothing is taken for dead."""
    disturbed = serve("engine.after_execute=sleep:0.02", "--step-timeout", "1")
    server = disturbed.server
    is_due = threading.Event()
    has_passed = threading.Event()

    def stand_still() -> None:
        is_due.wait()
        server.signal_all(signal.SIGSTOP)
        time.sleep(STANDSTILL_S)
        server.signal_all(signal.SIGCONT)
        has_passed.set()

    pauser = threading.Thread(target=stand_still)
    pauser.start()
    try:
        ledgers = disturbed.run(lambda tokens: tokens < 20 or is_due.set())
    finally:
        is_due.set()
        pauser.join()
    assert has_passed.is_set()
    assert "died" not in server.output
    disturbed.check(expected, ledgers)
