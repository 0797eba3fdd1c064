"""Mutants of first-party schedulers, each under the public suites in a process of its own. Command line.

The process is a fork of one that has imported all but what is mutated and what imports that, so that a mutant costs its
tests and little more.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import time
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from suite_strength.subjects import CONCERNED, PACKAGES, Subject, suites

LIMIT_S = 60  # of processor time, in which the original runs the suites of one module
PATIENCE = 10  # times as long on the wall clock, for a mutant that waits
IMPORTERS = (
    *PACKAGES.values(), "tenonry_testkit", "tenonry_policy", "suite_strength.authors",
)  # fmt: skip
# Those that find most come first; the others follow in the order of their names, long searches at the end.
FIRST = (
    "test_it_is_a_scheduler_that_the_kernel_accepts",
    "test_what_never_fits_is_rejected_alone",
    "test_length_classes_are_kept_apart",
    "test_rows_restart_for_another_length_class",
    "test_cached_blocks_are_private",
    "test_drafts_add_up",
    "test_a_crowd_waits_and_leaves",
    "test_gone_rows_are_sent_before_the_end",
    "test_a_repeated_prompt_is_found",
    "test_statistics_add_up_to_what_happened",
    "test_loads_add_up",
    "test_a_load_without_end_costs_no_request",
    "test_requests_that_cannot_share_a_step_take_turns",
    "test_few_pass_a_request_that_waits",
    "test_results_that_do_not_fit_are_rejected",
    "test_pooled_results_go_to_their_requests",
    "test_ended_requests_leave_nothing_behind",
    "test_any_traffic_in_any_engine",
    "test_every_request_ends_exactly_once",
    "test_a_failed_row_ends_alone",
    "test_prefix_cache_changes_no_token",
    "test_hits_are_those_that_requests_start_with",
)
LAST = (
    "test_right_at_depth",
    "test_right_in_rounds",
    "test_a_window_changes_no_token",
)  # long searches

MakeSuites = Callable[[str | None], list[type[Any]]]  # of the name of a module, those that run it


@dataclass
class Killing:
    """Outcome: by mutant the test that failed; `survivors` failed none, and `slow` were stopped at the limit."""

    killed: dict[Subject, str] = field(default_factory=dict)
    slow: list[Subject] = field(default_factory=list)
    survivors: list[Subject] = field(default_factory=list)
    longest_s: float = 0.0

    @property
    def num_tried(self) -> int:
        return len(self.killed) + len(self.slow) + len(self.survivors)

    @property
    def share(self) -> float:
        """Share of the mutants that were noticed."""
        return (len(self.killed) + len(self.slow)) / max(1, self.num_tried)


def try_mutants(
    subjects: Sequence[Subject],
    jobs: int = 2,
    make_suites: MakeSuites = suites,
    limit_s: int = LIMIT_S,
) -> Killing:
    """Run each mutant under the suites. Raises RuntimeError if the suites fail without any change."""
    preload(make_suites)
    context = multiprocessing.get_context("fork")
    outcome = Killing()
    unchanged = _Trial(context, None, make_suites, PATIENCE * limit_s)  # those of all modules
    failed = unchanged.verdict(PATIENCE * limit_s)
    if failed != "":
        raise RuntimeError(f"the suites fail without any change: {failed or 'out of time'}")
    queue = list(reversed(subjects))
    running: dict[Connection, _Trial] = {}
    try:
        while queue or running:
            while queue and len(running) < jobs:
                trial = _Trial(context, queue.pop(), make_suites, limit_s)
                running[trial.connection] = trial
            ended = wait(list(running), timeout=1.0)
            late = [each for each, trial in running.items() if trial.age_s > PATIENCE * limit_s]
            for connection in {*ended, *late}:
                trial = running.pop(connection)  # type: ignore[arg-type]
                outcome.longest_s = max(outcome.longest_s, trial.age_s)
                _note(outcome, trial)
    finally:
        for trial in running.values():
            trial.verdict(0.0)
    return outcome


def _note(outcome: Killing, trial: _Trial) -> None:
    subject, failed = trial.subject, trial.verdict(0.0)
    assert subject is not None
    if failed is None:
        outcome.slow.append(subject)
    elif failed:
        outcome.killed[subject] = failed
    else:
        outcome.survivors.append(subject)
    what = "hangs" if failed is None else f"killed by {failed}" if failed else "SURVIVES"
    sys.stderr.write(f"{trial.age_s:5.1f} s  {subject}  {what}\n")


def preload(make_suites: MakeSuites) -> None:
    """Import all that the suites import, and forget what is mutated and what imports it."""
    make_suites(None)
    for name in [name for name in sys.modules if name.startswith(IMPORTERS)]:
        del sys.modules[name]
        package, _, module = name.rpartition(".")
        parent = sys.modules.get(package)
        if parent is not None:  # or `from package import module` still finds it
            vars(parent).pop(module, None)


class _Trial:
    """One forked process."""

    def __init__(
        self, context: Any, subject: Subject | None, make_suites: MakeSuites, limit_s: int
    ) -> None:
        self.subject = subject
        self.connection, child = context.Pipe(duplex=False)
        self._begin = time.monotonic()
        self._process = context.Process(target=_run, args=(subject, make_suites, limit_s, child))
        self._process.start()
        child.close()
        self._verdict: str | None = None
        self._is_over = False

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._begin

    def verdict(self, timeout_s: float) -> str | None:
        """Return the test that failed, "" if none did, or None if there is no end in sight; ends the process."""
        if not self._is_over:
            self._is_over = True
            try:
                if self.connection.poll(timeout_s):
                    self._verdict = self.connection.recv()
            except EOFError:
                self._process.join()
                is_late = self._process.exitcode == -signal.SIGXCPU
                self._verdict = None if is_late else "the test process, which died"
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.join()
            self.connection.close()
        return self._verdict


def _run(subject: Subject | None, make_suites: MakeSuites, limit_s: int, out: Connection) -> None:
    """Child process: put the mutant in the place of its module, and run the suites until a test fails."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime) + limit_s
    resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if subject is not None:
        sys.meta_path.insert(0, _Replaced(subject))
    try:
        module = subject.module if subject else None
        concerned = CONCERNED.get((module or "").rpartition(".")[2], ())
        verdict = first_failure(make_suites(module), concerned)
    except BaseException as error:  # a mutant may break the import
        verdict = f"the import, {type(error).__name__}"
    out.send(verdict)


def first_failure(classes: Iterable[type[Any]], concerned: Sequence[str] = ()) -> str:
    """Name of the first test that fails, "" if none does; the `concerned` ones come first.

    Each test runs with all classes before the next one. A class that `is_brief` runs those that come first alone.
    """
    from tenonry_testkit.outcomes import failing_tests

    found = list(classes)
    brief = {*FIRST, *concerned}
    for name in _in_order(found, concerned):
        for cls in found:
            if name not in brief and getattr(cls, "is_brief", False):
                continue
            failures = failing_tests(cls, [name])
            if failures:
                return f"{cls.__name__}.{name}: {type(failures[name]).__name__}"
    return ""


def _in_order(classes: Sequence[type[Any]], concerned: Sequence[str]) -> list[str]:
    names = sorted({name for cls in classes for name in dir(cls) if name.startswith("test_")})
    first = [name for name in (*FIRST, *concerned) if name in names]
    rest = [name for name in names if name not in {*first, *LAST}]
    return list(dict.fromkeys([*first, *rest, *(name for name in LAST if name in names)]))


class _Replaced(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, in its mutated form."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Spec of the module, with the file of the original."""
        if fullname != self._subject.module:
            return None
        sys.meta_path.remove(self)
        original = importlib.util.find_spec(fullname)
        assert original is not None
        return importlib.util.spec_from_file_location(
            fullname,
            original.origin,
            loader=self,  # type: ignore[arg-type]
            submodule_search_locations=original.submodule_search_locations,
        )

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the mutated source."""
        code = compile(self._subject.mutant.source, f"<mutant {self._subject}>", "exec")
        exec(code, vars(module))
