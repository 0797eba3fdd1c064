from __future__ import annotations

import pytest

from tenonry_torch_base import phases as module
from tenonry_torch_base.phases import Phases


@pytest.fixture
def clock(monkeypatch):
    """Manual clocks: [seconds on the clock, CPU seconds]."""
    now = [0.0, 0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(module.time, "process_time", lambda: now[1])

    def passes(wall: float, cpu: float) -> None:
        now[0] += wall
        now[1] += cpu

    return passes


def test_a_phase_inside_another_is_not_counted_in_that_one(clock):
    phases = Phases()
    with phases.of("look"):
        clock(1.0, 0.5)
    with phases.of("check"):
        clock(2.0, 1.0)
        with phases.of("packing"):
            clock(4.0, 3.0)
            with phases.of("look"):
                clock(8.0, 8.0)
        clock(16.0, 1.0)
    assert phases.seconds == {"look": (9.0, 8.5), "check": (18.0, 2.0), "packing": (4.0, 3.0)}
    assert phases.text == "look 9.00, check 18.00, packing 4.00"


def test_a_phase_that_fails_is_counted(clock):
    phases = Phases()

    def fails() -> None:
        with phases.of("look"):
            clock(1.0, 1.0)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert phases.seconds == {"look": (1.0, 1.0)}
