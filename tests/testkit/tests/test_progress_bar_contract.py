"""The suite of progress bars, over one that is right and over broken ones."""

from __future__ import annotations

import contextlib
import io
import sys
import threading

import pytest

from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.progress_bar import ProgressBarContract


@contextlib.contextmanager
def numbers(total):
    """Writes each number of ended requests."""
    yield lambda ended: sys.stderr.write(f"{ended} of {total}\n")


class TestNumbers(ProgressBarContract):
    progress_bar = numbers


class TestByName(ProgressBarContract):
    progress_bar = f"{__name__}:numbers"


def is_no_context_manager(total):
    return lambda ended: None


@contextlib.contextmanager
def yields_nothing(total):
    yield


@contextlib.contextmanager
def divides_by_the_total(total):
    yield lambda ended: sys.stderr.write(f"{100 // total * ended} %\n")


@contextlib.contextmanager
def needs_a_list(total):
    with numbers(len([*range(total)][:1]) or 1 // total):
        yield len([]).__add__


@contextlib.contextmanager
def expects_one_at_a_time(total):
    last = 0

    def update(ended):
        nonlocal last
        if ended not in (last, last + 1):
            raise ValueError(f"{ended} after {last}")
        last = ended

    yield update


@contextlib.contextmanager
def stops_at_the_total(total):
    left = iter(range(total))
    yield lambda ended: next(left)


@contextlib.contextmanager
def swallows(total):
    with contextlib.suppress(Exception):
        yield lambda ended: None


OPEN: list[int] = []


@contextlib.contextmanager
def is_alone(total):
    if OPEN:
        raise RuntimeError("there is one already")
    OPEN.append(total)
    yield lambda ended: None
    OPEN.clear()


@contextlib.contextmanager
def is_not_closed(total):
    OPEN.append(total)
    yield lambda ended: sys.stderr.write("." if len(OPEN) == 1 else "")


@contextlib.contextmanager
def writes_to_standard_output(total):
    yield lambda ended: sys.stdout.write(f"{ended}\n")


@contextlib.contextmanager
def replaces_the_stream(total):
    sys.stdout = io.StringIO()
    yield lambda ended: None


STARTED: list[threading.Event] = []


@contextlib.contextmanager
def leaves_a_thread(total):
    STARTED.append(threading.Event())
    threading.Thread(target=STARTED[-1].wait, args=(60,)).start()
    yield lambda ended: None


BROKEN = {
    is_no_context_manager: "test_it_yields_a_function",
    yields_nothing: "test_it_yields_a_function",
    divides_by_the_total: "test_a_run_may_have_no_requests",
    needs_a_list: "test_a_run_may_have_no_requests",
    expects_one_at_a_time: "test_requests_may_end_together",
    stops_at_the_total: "test_it_shows_every_length_of_run",
    swallows: "test_a_run_may_end_early",
    is_alone: "test_runs_may_be_nested",
    is_not_closed: "test_runs_follow_one_another",
    writes_to_standard_output: "test_standard_output_is_left_to_the_caller",
    replaces_the_stream: "test_it_leaves_the_process_as_it_was",
    leaves_a_thread: "test_it_leaves_the_process_as_it_was",
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    yield
    OPEN.clear()
    while STARTED:
        STARTED.pop().set()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
@pytest.mark.broken("progress_bar")
def test_broken_ones_are_caught(broken):
    suite = type("Suite", (ProgressBarContract,), {"progress_bar": staticmethod(broken)})
    assert BROKEN[broken] in failing_tests(suite, [BROKEN[broken]])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(ProgressBarContract) if name.startswith("test_")}
    assert tests == set(BROKEN.values())
