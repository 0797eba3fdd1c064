"""The measurement on small parts: a few mutants, one kind of the corpus, and what it reports of wrong outcomes."""

from __future__ import annotations

import json
import subprocess
import sys
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from suite_strength import mutation, subjects
from suite_strength.cases import kinds_of
from suite_strength.corpus import ROOT, KindOutcome, files_with_cases, outcomes_of, run_corpus
from suite_strength.mutation import Killing
from suite_strength.subjects import Subject
from suite_strength.table import MIN_KILLED, problems, table

from tenonry_author_tools.mutants import Mutant, mutants
from tenonry_testkit.model_pass import ModelPassContract
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.suites import SUITES

STATIC = ROOT / "schedulers" / "static" / "src" / "tenonry_scheduler_static" / "__init__.py"
# A child process: what is mutated must be imported anew, and other tests of this process have it.
SCRIPT = """
import json, sys
from suite_strength.mutation import try_mutants
from suite_strength.subjects import Subject, suites
from tenonry_testkit.outcomes import failing_tests
from tenonry_author_tools.mutants import Mutant

def few(module):
    suite = suites("tenonry_scheduler_static")[0]

    class Few:
        def test_quick_ones(self):
            names = ["test_it_is_a_scheduler_that_the_kernel_accepts", "test_gone_rows_are_sent_before_the_end"]
            assert failing_tests(suite, names) == {}

    return [Few]

rows = json.loads(sys.stdin.read())
found = [Subject(module, "", Mutant(1, text, source)) for module, text, source in rows]
outcome = try_mutants(found, 1, few, 3)
print(json.dumps([[each.mutant.text for each in group] for group in (outcome.killed, outcome.slow, outcome.survivors)]))
"""


def tried(rows: list[tuple[str, str]]) -> list[list[str]]:
    """Changes of `static` that were killed, stopped and survived."""
    given = [("tenonry_scheduler_static", text, source) for text, source in rows]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(given),
        cwd=Path(__file__).parent,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.integration
def test_a_change_is_killed_an_equal_one_survives_and_an_endless_one_is_stopped():
    source = STATIC.read_text("utf-8")
    broken = [each for each in mutants(source) if each.text.endswith("nothing")][:2]
    assert len(broken) == 2
    endless = source.replace(
        "def choose(self, step: StepBuilder) -> None:",
        "def choose(self, step: StepBuilder) -> None:\n        while True:\n            pass",
    )
    assert endless != source
    rows = [
        *((each.text, each.source) for each in broken),
        ("a comment", f"{source}# more\n"),
        ("no module", "raise ImportError"),
        ("endless", endless),
    ]
    killed, stopped, survivors = tried(rows)
    assert {"no module"} < set(killed) <= {"no module", *(each.text for each in broken)}
    assert stopped == ["endless"]
    assert "a comment" in survivors


PRELOADED = """
from suite_strength import mutation, subjects
mutation.preload(subjects.suites)
classes = subjects.suites("tenonry_scheduling.rows")
from tenonry_scheduling import BaseScheduler
print(all(issubclass(each.scheduler, BaseScheduler) for each in classes))
"""


@pytest.mark.integration
def test_every_scheduler_runs_the_changed_library():
    command = [sys.executable, "-c", PRELOADED]
    folder = Path(__file__).parent
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["True"]


class Passing:
    """A suite that notices nothing."""

    def test_nothing(self):
        pass


@pytest.mark.integration
def test_no_more_run_at_a_time_than_asked_for_where_none_ends_soon(monkeypatch):
    seen = []

    def first_in_vain(connections, timeout):
        seen.append(len(connections))
        return [] if len(seen) < 4 else wait(connections, timeout)

    monkeypatch.setattr(mutation, "preload", lambda make_suites: None)
    monkeypatch.setattr(mutation, "wait", first_in_vain)
    found = [Subject("none", "", Mutant(number, "a → b", "")) for number in range(5)]
    outcome = mutation.try_mutants(found, 2, lambda module: [Passing], 20)
    assert len(outcome.survivors) == 5
    assert max(seen) == 2


def test_the_sample_is_the_same_each_time_and_has_no_equivalents(monkeypatch):
    monkeypatch.setattr(subjects, "PACKAGES", {"static": subjects.PACKAGES["static"]})
    found = subjects.sampled(3)
    assert found == subjects.sampled(3)
    assert len(found) == 3
    monkeypatch.setattr(subjects, "equivalents", lambda: {each.key: "equal" for each in found})
    assert not {each.key for each in subjects.sampled(100)} & {each.key for each in found}


def test_every_equivalent_is_one_of_the_sources_and_has_a_reason(monkeypatch):
    listed = subjects.equivalents()
    assert all(len(reason) > 15 for reason in listed.values())
    for folder, package in subjects.PACKAGES.items():
        for module in {key[0] for key in listed if key[0].partition(".")[0] == package}:
            name = module.removeprefix(package).strip(".") or "__init__"
            text = (subjects.SCHEDULERS / folder / "src" / package / f"{name}.py").read_text(
                "utf-8"
            )
            lines = text.splitlines()
            there = {(module, lines[each.line - 1].strip(), each.text) for each in mutants(text)}
            assert {key for key in listed if key[0] == module} <= there


@pytest.mark.integration
def test_one_kind_of_the_corpus_is_counted():
    files = [path for path in files_with_cases() if path.name == "test_progress_bar_contract.py"]
    found = run_corpus(["progress_bar"], files)
    assert list(found) == ["progress_bar"]
    assert len(found["progress_bar"].broken) >= 8
    assert len(found["progress_bar"].correct) == 2
    assert problems(found, None) == []
    assert table(found, None)[1].split() == [
        "progress_bar",
        "ProgressBarContract",
        "12/12",
        "2/2",
        "-",
    ]


def test_what_is_wrong_is_named():
    rows = [
        ("broken", "route", "a", ["failed"]),
        ("broken", "route", "b", ["skipped"]),
        ("broken", "route", "c", ["passed"]),
        ("correct", "route", "d", ["passed", "skipped"]),
        ("correct", "route", "e", ["failed", "passed"]),
        ("correct", "route", "f", ["skipped"]),
    ]
    found = outcomes_of(rows, ["route"])
    assert found["route"].skipped == ["f"]
    assert problems(found, None) == [
        "route: 3 broken plugins, at least 8 are needed",
        "route: not caught: a",
        "route: not caught: b",
        "route: rejected: e",
    ]
    many = KindOutcome(broken=dict.fromkeys(map(str, range(39)), True))
    assert problems({"scheduler": many, "route": many}, None) == [
        "scheduler: 39 broken plugins, at least 40 are needed",
        "route: no correct plugin ran",
    ]


def test_a_class_counts_for_the_kinds_that_it_names():
    class Policy(SchedulerContract):
        scheduler = "batching"
        policy = "fcfs"

    class Pass(ModelPassContract):
        model_pass = "packing"

    assert kinds_of(Policy) == ["scheduler", "scheduling_policy"]
    assert kinds_of(type("Static", (SchedulerContract,), {"scheduler": "static"})) == ["scheduler"]
    assert kinds_of(Pass) == ["model_pass"]
    assert kinds_of(SchedulerContract) == kinds_of(Policy.__class__) == []


def test_survivors_are_named_below_the_bound():
    def one(number: int) -> Subject:
        return Subject("module", "line", Mutant(number, "a → b", ""))

    killing = Killing(killed={one(number): "test" for number in range(18)}, survivors=[one(18)])
    found = problems({}, killing)
    assert found == ["mutants: 94.7% killed, at least 95% are needed", "survives: module:18: a → b"]
    assert table({}, killing)[1].endswith("18 + 0 stopped/19")
    killing.slow.append(one(19))
    assert problems({}, killing) == []


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_whole_measurement_is_within_its_bounds():
    command = [sys.executable, "-m", "suite_strength", "--json"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    answer = json.loads(done.stdout)
    assert answer["problems"] == []
    assert answer["kinds"].keys() == SUITES.keys()
    assert answer["mutants"]["share"] >= MIN_KILLED


def test_concerned_tests_are_those_of_the_suite():
    for names in subjects.CONCERNED.values():
        assert {*names} <= {*dir(SchedulerContract)}
    assert {*mutation.FIRST, *mutation.LAST} <= {*dir(SchedulerContract)}


def test_the_judge_is_not_mutated():
    assert "tenonry_scheduling.validator" in subjects.LEFT_OUT
    assert mutation.LIMIT_S <= 60
