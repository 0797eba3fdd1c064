"""Parts of suites: targets, search settings, the trap for clocks, programs that print and repeat."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import time
from time import monotonic, sleep
from types import FunctionType

import hypothesis.strategies as st
import pytest

from tenonry.errors import PluginError, PluginIncompatible
from tenonry.interfaces.scheduler import Scheduler
from tenonry_testkit import rules
from tenonry_testkit.answers import TYPES
from tenonry_testkit.fakes import ReferenceScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.outcomes import cases_of, failing_tests
from tenonry_testkit.processes import run_cli
from tenonry_testkit.rules import RuleBroken
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.search import effort, search
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.targets import resolve_target
from tenonry_testkit.traffic import Send, Turn, play
from tenonry_testkit.wall_clock import WallClockTrap

NAME = "tenonry_testkit.fakes.scheduler:ReferenceScheduler"


class TestTargets:
    def test_class_target_and_file_lead_to_a_scheduler(self, tmp_path):
        path = tmp_path / "mine.py"
        path.write_text(
            "from tenonry_testkit.fakes import ReferenceScheduler\nclass Mine(ReferenceScheduler): ...\n"
        )
        assert resolve_target("scheduler", ReferenceScheduler)[0] is ReferenceScheduler
        assert resolve_target("scheduler", NAME)[0] is ReferenceScheduler
        assert issubclass(resolve_target("scheduler", f"{path}:Mine")[0], ReferenceScheduler)

    def test_entry_point_is_found(self, tmp_plugins):
        tmp_plugins.distribution(
            "mine", "3.1", entry_points={"tenonry.schedulers": {"quick": NAME}}
        )
        assert resolve_target("scheduler", "quick")[::2] == (ReferenceScheduler, "quick")

    def test_what_the_kernel_would_refuse_is_refused(self):
        class Half(Scheduler):
            pass

        class FromTheFuture(ReferenceScheduler):
            interface_version = 99

        for target in (Half, FromTheFuture, dict):
            with pytest.raises(PluginIncompatible):
                resolve_target("scheduler", target)
        with pytest.raises(PluginError, match="bogus"):
            resolve_target("scheduler", ReferenceScheduler, {"bogus": 1})

    def test_suite_without_a_target_says_what_to_write(self):
        failure = failing_tests(
            SchedulerContract, ["test_it_is_a_scheduler_that_the_kernel_accepts"]
        )
        assert 'scheduler = "my_package:MyClass"' in str(*failure.values())


class TestSearch:
    def test_effort_comes_from_the_environment(self, monkeypatch):
        monkeypatch.delenv("TENONRY_TESTKIT_EFFORT", raising=False)
        assert effort() == 1
        monkeypatch.setenv("TENONRY_TESTKIT_EFFORT", "12")
        assert effort() == 12
        monkeypatch.setenv("TENONRY_TESTKIT_EFFORT", "0.25")
        assert effort() == 0.25
        for wrong in ("much", "0", "-1", "1e3", "nan"):
            monkeypatch.setenv("TENONRY_TESTKIT_EFFORT", wrong)
            with pytest.raises(ValueError, match=f"'{wrong}' must be a number above 0"):
                effort()

    def test_less_effort_looks_at_fewer_examples(self, monkeypatch):
        monkeypatch.setenv("TENONRY_TESTKIT_EFFORT", "0.2")
        for examples, seen in ((15, 3), (2, 1)):
            looked_at = []
            search(st.integers(), looked_at.append, examples)
            assert len(looked_at) == seen

    def test_two_runs_look_at_the_same_examples(self, monkeypatch):
        monkeypatch.setenv("TENONRY_TESTKIT_EFFORT", "1")
        runs = []
        for _ in range(2):
            runs.append([])
            search(st.integers(), runs[-1].append, 15)
        assert runs[0] == runs[1]
        assert len(set(runs[0])) > 5

    def test_smallest_failure_passes_through(self):
        def check(number):
            assert number < 10, f"saw {number}"

        with pytest.raises(AssertionError, match="saw 10"):
            search(st.integers(0, 1000), check, 50)

    def test_shrinking_is_bounded_and_names_its_own_bound(self, monkeypatch, capsys):
        """Hypothesis would continue for five minutes, and report that."""
        monkeypatch.setattr("tenonry_testkit.search.MAX_SHRINKING_S", -1)  # over before it begins
        seen = []

        def check(numbers):
            seen.append(numbers)
            assert sum(numbers) < 1000

        with pytest.raises(AssertionError):
            search(st.lists(st.integers(0, 1000), max_size=40), check, 50)
        printed = capsys.readouterr().out
        assert "Shrinking stopped after -1 s; a smaller failing example may exist." in printed
        assert "five minutes" not in printed
        assert len(seen) < 60

    def test_all_cases_of_a_suite_are_named(self):
        cases = list(
            cases_of(SchedulerContract, ["test_right_at_depth", "test_limits_are_never_exceeded"])
        )
        assert [case for _, case in cases][:3] == [{"depth": 1}, {"depth": 2}, {"depth": 3}]
        assert {"seqs": 1, "budget": 9} in [case for _, case in cases]


class TestWallClock:
    @pytest.fixture
    def trap(self):
        trap = WallClockTrap({__name__.partition(".")[0]})
        yield trap
        trap.close()

    @pytest.mark.parametrize("name", ["time", "perf_counter_ns", "monotonic", "localtime"])
    def test_every_clock_raises_while_watched_and_only_then(self, trap, name):
        getattr(time, name)()
        with trap.watched(), pytest.raises(RuleBroken, match=rf"time\.{name}\(\) in line"):
            getattr(time, name)()
        getattr(time, name)()

    def test_clocks_that_were_imported_by_name_raise(self, trap):
        with trap.watched(), pytest.raises(RuleBroken, match=r"test_tools called time\.monotonic"):
            monotonic()
        with trap.watched(), pytest.raises(RuleBroken, match=rules.NO_WALL_CLOCK):
            sleep(0)

    def test_dates_raise(self, trap):
        with trap.watched(), pytest.raises(RuleBroken, match=r"datetime\.now"):
            dt.datetime.now(dt.UTC)
        assert dt.datetime.now(dt.UTC).year > 2000

    def test_logging_may_look_at_the_clock(self, trap, caplog):
        with trap.watched():
            logging.getLogger("any").warning("a line with a time")
        assert caplog.records[-1].created > 0

    def test_test_tools_may_look_at_the_clock(self, trap):
        """hypothesis measures how long collections take, also those that happen in the middle of a scheduler."""

        def look():
            return time.time()

        namespace = {"__name__": "hypothesis.internal", "time": time}
        with trap.watched():
            assert FunctionType(look.__code__, namespace)() > 0

    def test_clocks_come_back(self):
        before = (time.time, dt.datetime, monotonic)
        WallClockTrap(set()).close()
        assert (time.time, dt.datetime, monotonic) == before


class TestTraffic:
    def test_requests_print_what_is_unusual_about_them(self):
        assert repr(Send()) == "Send()"
        assert repr(Send(family=1, cache_salt="a")) == "Send(family=1, cache_salt='a')"

    def test_same_program_gives_the_same_run(self):
        ops = [
            Send(length=9),
            Send(family=1, max_tokens=7),
            Turn(3),
            Send(length=2, stop_after=1),
            Turn(9),
        ]
        runs = []
        for _ in range(2):
            harness = SchedulerHarness(ReferenceScheduler, HarnessSpec(depth=2))
            play(harness, ops)
            harness.drain()
            runs.append((harness.ledger.summary(), len(harness.outputs)))
        assert runs[0] == runs[1]
        assert runs[0][0]["stop"] == 1

    @pytest.mark.parametrize("method", TYPES)
    def test_a_result_of_another_type_is_named_with_its_method(self, method: str):
        class Silent(ReferenceScheduler):
            pass

        def silent(self, *args, **fields):
            getattr(super(Silent, self), method)(*args, **fields)

        setattr(Silent, method, silent)
        silent.__name__ = method
        harness = SchedulerHarness(Silent, HarnessSpec())
        with pytest.raises(RuleBroken, match=rf"interface declares: {method}\(\) returned None"):
            play_and_end(harness)


def play_and_end(harness: SchedulerHarness) -> None:
    """Use each method of the scheduler."""
    play(harness, [Send(length=9), Turn(1)])
    harness.reset_prefix_cache()
    harness.abort(None)
    harness.drain()


@pytest.mark.integration
class TestImports:
    def loaded(self, module):
        code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
        return set(run_cli(code, command=(sys.executable, "-c"), timeout=20).check().stdout.split())

    def test_plugin_costs_a_session_next_to_nothing(self):
        assert not self.loaded("tenonry_testkit.pytest_plugin") & {
            "numpy",
            "hypothesis",
            "torch",
            "tenonry",
            "pydantic",
        }

    @pytest.mark.parametrize(
        "module", ["scheduler", "worker", "executor", "stat_logger", "io_processor", "kv_connector"]
    )
    def test_suites_are_free_of_torch(self, module):
        assert not self.loaded(f"tenonry_testkit.{module}") & {
            "torch",
            "transformers",
            "fastapi",
            "zmq",
        }
