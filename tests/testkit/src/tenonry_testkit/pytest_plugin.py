"""pytest plugin of the testkit: fixtures for plugin authors, and the check for leftovers of a test.

Switches: the ini options `tenonry_residue = off` and `tenonry_residue_grace_s`, the marker `leaves_residue`, and
`--testkit-effort`. Test process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tenonry_testkit.residue import ResidueWatch, mark_descendants

EFFORT_VARIABLE = (
    "TENONRY_TESTKIT_EFFORT"  # as in `search`, which would load hypothesis into every session
)
WATCH = pytest.StashKey[ResidueWatch]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The switches."""
    group = parser.getgroup("tenonry")
    group.addoption(
        "--testkit-effort",
        type=float,
        metavar="N",
        help="run N times as many examples in contract suites, random for N > 1",
    )
    parser.addini(
        "tenonry_residue",
        "fail tests that leave processes, threads, sockets, … behind: on or off",
        default="on",
    )
    parser.addini(
        "tenonry_residue_grace_s",
        "seconds that what a test started has for going away",
        default="5",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and mark the processes of tests."""
    config.addinivalue_line(
        "markers", "leaves_residue(reason): the test may leave processes, threads, … behind"
    )
    times = config.getoption("--testkit-effort")
    if times is not None:
        os.environ[EFFORT_VARIABLE] = str(times)
    if config.getini("tenonry_residue") != "off":
        mark_descendants()


def pytest_collection(session: pytest.Session) -> None:
    """Start the watch. Not earlier: a process may be forked here for each of several runs."""
    if session.config.getini("tenonry_residue") != "off":
        session.config.stash[WATCH] = ResidueWatch()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: Any, request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    """Permit resources of a fixture with a wider scope until the fixture ends."""
    watch = request.config.stash.get(WATCH, None)
    if watch is None or fixturedef.scope == "function":
        return (yield)
    before = watch.now()
    try:
        return (yield)
    finally:
        watch.allow(fixturedef, watch.now() - before)


def pytest_fixture_post_finalizer(fixturedef: Any, request: pytest.FixtureRequest) -> None:
    """Stop permitting the resources of an ended fixture."""
    watch = request.config.stash.get(WATCH, None)
    if watch is not None:
        watch.disallow(fixturedef)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Check after all fixtures of the test that none of its resources are left."""
    yield
    watch = item.config.stash.get(WATCH, None)
    if watch is None:
        return
    excused = item.get_closest_marker("leaves_residue")
    left = watch.leftovers(
        grace_s=0.0 if excused else float(item.config.getini("tenonry_residue_grace_s"))
    )
    if left:
        watch.forgive(left)
        if excused is None:
            pytest.fail(
                "the test left behind:\n" + "\n".join(f"  {thing.text}" for thing in left),
                pytrace=False,
            )


# ------------------------------------------------------------------------------------------------------ fixtures
@pytest.fixture(name="run_cli")
def _run_cli() -> Callable[..., Any]:
    """`run_cli(*arguments, timeout=…, env=…, cwd=…, stdin=…)`: run `tenonry` to its end; see `processes.run_cli`."""
    from tenonry_testkit.processes import run_cli

    return run_cli


@pytest.fixture(name="start_server")
def _start_server() -> Iterator[Callable[..., Any]]:
    """`start_server(*arguments, …)`: a ready server, killed with its tree at the end of the test."""
    from tenonry_testkit.processes import start_server

    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(start_server(*arguments, **options))


@pytest.fixture
def tmp_plugins(tmp_path: Path) -> Iterator[Any]:
    """Distributions, entry points and hook modules of this test only; see `plugins.TmpPlugins`."""
    from tenonry_testkit.plugins import TmpPlugins

    with TmpPlugins(tmp_path / "site") as plugins:
        yield plugins


@pytest.fixture
def fake_model_site(tmp_path: Path) -> Iterator[Any]:
    """Install the model `fake` for front ends of this test, and for children with the folder in PYTHONPATH."""
    from tenonry_testkit.plugins import fake_model_installed

    with fake_model_installed(tmp_path / "fake-model-site") as plugins:
        yield plugins


@pytest.fixture
def forked_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the engines and ranks of this test from its process: they import nothing again."""
    from tenonry_testkit.kernel.forked import fork_children

    fork_children(monkeypatch)


@pytest.fixture
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore TENONRY_… variables of the environment in this test and its processes."""
    for name in [
        name for name in os.environ if name.startswith("TENONRY_") and name != EFFORT_VARIABLE
    ]:
        monkeypatch.delenv(name)


@pytest.fixture
def virtual_clock() -> Any:
    """A clock controlled by the test; see `fakes.VirtualClock`."""
    from tenonry_testkit.fakes.clock import VirtualClock

    return VirtualClock()
