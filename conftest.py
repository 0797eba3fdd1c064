"""Settings for every test: its tier, no deadlines for hypothesis, no `gpu` tests without a CUDA device."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# How long an example takes says something about the machine, which may be busy, and nothing about the code. A change is
# judged by examples that are the same in each run; `TENONRY_EXPLORE=1`, as `dev.py test --all` sets it, tries others.
hypothesis.settings.register_profile(
    "tenonry",
    deadline=None,
    # Not `explain`, which traces every line: many tests are of suites that must fail, up to 15 s each.
    phases=[phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain],
    derandomize=not os.environ.get("TENONRY_EXPLORE"),
    max_examples=100 if os.environ.get("TENONRY_EXPLORE") else 25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tenonry")

# As `dev.py test` has it. Servers and engines of tests are forks of the test process, and OpenMP's other threads are
# not in a fork: with more than one it would wait for them for ever.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As `addopts` of pyproject.toml has it: runs of pytest that tests start elsewhere would import that plugin, which takes
# longer than all else.
os.environ.setdefault("PYTEST_ADDOPTS", "-p no:schemathesis")

# To the end of the collection: what is imported and collected stays, so looking for garbage among it is wasted.
gc.disable()

ROOT = Path(__file__).parent
# Faults at random moments and all model families, for minutes; each of their guarantees has a shorter test besides.
NIGHTLY = [ROOT / "tests" / name for name in ("chaos", "parity")]
PROCESSES = ("clients", "compat", "integration", "public", "security", "strength")
OTHER_TIERS = ("gpu", "integration", "nightly", "slow")
# Several distributions together, most of them in real processes.
INTEGRATION = [*(ROOT / "tests" / name for name in PROCESSES), ROOT / "executors" / "ray"]
# Fixtures that start processes, or serve those that do.
STARTING = {"fake_model_site", "forked_children", "run_cli", "start_server"}
# Audit events of a new process, and those that this process has seen during the running test.
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}
starts: list[str] = []

# A shell starts what it runs in the background with SIGINT ignored, `nohup` with SIGHUP, and children inherit that; a
# server then rightly ignores it, too. Ours are interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
HANDLED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests leave in the folder for temporary files apart from what those of other processes do.

    Let the first of several testers compile the test files for the others, if there are none yet.
    """
    sys.addaudithook(note_start)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        if worker != "gw0":
            time.sleep(float(os.environ.get("TESTERS_HEAD_START_S", "0")))  # as `dev.py` asks
        folder = tempfile.mkdtemp(prefix=f"{worker}-")
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def _no_log_handlers_left() -> Iterator[None]:
    """A command that was run in this process wrote its log to a stream that is closed by the time of the next test."""
    yield
    logger = logging.getLogger("tenonry")
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    for handler in list(logging.root.handlers):
        if type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)


@pytest.fixture(autouse=True)
def _signal_handlers_are_kept() -> Iterator[None]:
    """Fails a test that leaves other handlers: those after it could not be interrupted, nor could their children."""
    with restored_handlers() as changed:
        yield
    if changed:
        pytest.fail(f"the test leaves other handlers of {', '.join(each.name for each in changed)}")


@pytest.fixture
def ends_its_process() -> Iterator[None]:
    """For tests that run a command in this process which, as the last act of its own process, ignores signals."""
    with restored_handlers():
        yield


@contextlib.contextmanager
def restored_handlers() -> Iterator[list[signal.Signals]]:
    """Restore the signal handlers; the list is that of the changed ones, at the end."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    changed: list[signal.Signals] = []
    try:
        yield changed
    finally:
        changed += [number for number in HANDLED if signal.getsignal(number) != before[number]]
        for number in changed:
            signal.signal(number, before[number])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let no garbage collection of a test visit what exists by now: half a million objects of modules and tests."""
    try:
        return (yield)
    finally:
        draw_once()
        gc.freeze()
        gc.enable()


@hypothesis.given(hypothesis.strategies.none())
@hypothesis.settings(max_examples=1, database=None)
def draw_once(_: None) -> None:
    """Make hypothesis register its random numbers: it looks for their holder, which it does not find once frozen."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tiers that follow from folders and fixtures; skip the tests that need a GPU if there is none."""
    for item in items:
        for tier in tiers_of(item.path):
            item.add_marker(tier)
        if STARTING.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("integration")
    mark_later_cases(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not cuda_is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@functools.cache
def tiers_of(file: Path) -> list[str]:
    """Return the tiers that follow from the folder of a test file; looked up once, as a file may hold hundreds."""
    tiers = {"nightly": NIGHTLY, "integration": INTEGRATION}
    return [name for name, folders in tiers.items() if any(map(file.is_relative_to, folders))]


def mark_later_cases(items: list[pytest.Item]) -> None:
    """Mark nightly the cases of a parametrised test after the first ones, as many as `nightly_after(count)` allows.

    Cases that are nightly anyway do not count.
    """
    seen: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("nightly_after")
        if mark is not None and item.get_closest_marker("nightly") is None:
            name = item.nodeid.split("[", 1)[0]
            seen[name] += 1
            if seen[name] > mark.args[0]:
                item.add_marker("nightly")


def note_start(event: str, _: object) -> None:
    """Audit hook: remember that this process starts another."""
    if event in STARTS:
        starts.append(event)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test of the tier `unit` that started a process, in the test or in a fixture set up for it."""
    result = yield
    if starts and not any(map(item.get_closest_marker, OTHER_TIERS)):
        pytest.fail(
            f"the test starts a process ({', '.join(sorted(set(starts)))}); "
            "mark it @pytest.mark.integration, or test the same without a process",
            pytrace=False,
        )
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Nor what the files of tests before this one have imported and keep: the modules of models, above all."""
    starts.clear()
    result = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


def cuda_is_available() -> bool:
    """Return whether torch is installed and sees a CUDA device."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return torch.cuda.is_available()
