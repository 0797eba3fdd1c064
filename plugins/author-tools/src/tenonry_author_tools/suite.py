"""The tests of a plugin: its author's, or the conformance suite of its kind alone. Command line."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from tenonry_author_tools.children import run_child
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.subject import Subject

TIMEOUT_S = 1800.0
MOST_FAILURES = 5
FLAG = re.compile(r"\w+\.(\w+) = False")  # reason of a test that `tenonry_testkit.flags` skips


def check_suite(subject: Subject, lacks: set[str]) -> Iterator[Finding]:
    """Run the tests; yields failures, and a warning where there are none to run.

    `lacks` gets the capability flags that the tests set to False.
    """
    if not has_suites():
        text = "no conformance suite is installed"
        yield Finding(Rule.NO_SUITE, subject.label, text, advice="pip install tenonry-testkit")
        return
    with tempfile.TemporaryDirectory() as folder:
        tests = subject.tests or written_suites(subject, Path(folder))
        if tests is None:
            text = "it has no tests here; a suite of its kind needs more than its name"
            advice = "give the folder of its source"
            yield Finding(Rule.NO_SUITE, subject.label, text, str(subject.metadata), 1, advice)
            return
        yield from run_suite(subject, tests, Path(folder), lacks)


def has_suites() -> bool:
    """Return True if the testkit, which has the conformance suites, is installed."""
    return importlib.util.find_spec("tenonry_testkit") is not None


def written_suites(subject: Subject, folder: Path) -> Path | None:
    """Write a test module with the suites of all plugins that have one; None if none has."""
    suites = named_suites()
    found = [(record.kind, record.target) for record, _ in subject.records if record.kind in suites]
    if not found:
        return None
    file = folder / "test_suites.py"
    file.write_text(suite_text(found), "utf-8")
    return file


def named_suites() -> dict[str, Any]:
    """Suites that need nothing but the name of the plugin, by kind. The testkit must be installed."""
    suites = pkgutil.resolve_name("tenonry_testkit.suites:SUITES")
    return {kind: suite for kind, suite in suites.items() if suite.needs_name_only}


def suite_text(plugins: Iterable[tuple[str, str]]) -> str:
    """A test module with the suite of each plugin, given by kind and name."""
    suites, lines = named_suites(), []
    for number, (kind, plugin) in enumerate(plugins):
        suite = suites[kind]
        lines += [f"from {suite.module} import {suite.name} as Suite{number}", ""]
        lines += [f"class TestPlugin{number}(Suite{number}):"]
        lines += [f"    {suite.attribute} = {plugin!r}"]
        lines += ['    scheduler = "batching"', ""] if suite.attribute == "policy" else [""]
        lines += [f"del Suite{number}"]
    return "\n".join(lines) + "\n"


def run_suite(subject: Subject, tests: Path, folder: Path, lacks: set[str]) -> Iterator[Finding]:
    """Run tests with pytest; yields the first failures, and adds declared lacks."""
    report = folder / "report.xml"
    done = run_pytest(subject, tests, f"--junitxml={report}")
    if done is None:
        yield Finding(
            Rule.SUITE, subject.label, f"tests timed out after {TIMEOUT_S:g} s", str(tests)
        )
        return
    if report.exists():
        lacks.update(_declared_lacks(report))
    if done.returncode == 0 and report.exists():
        reasons = _all_skipped(report)
        if reasons:
            text = f"no test ran, all {len(reasons)} were skipped: {reasons[0]}"
            yield Finding(Rule.SKIPPED, subject.label, text, str(tests))
        return
    failures = _failures(report) if report.exists() else []
    for name, text in failures[:MOST_FAILURES]:
        yield Finding(Rule.SUITE, subject.label, f"{name} fails: {text}", str(tests))
    if len(failures) > MOST_FAILURES:
        text = f"{len(failures) - MOST_FAILURES} more tests fail"
        yield Finding(Rule.SUITE, subject.label, text, str(tests))
    if not failures:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        text = f"pytest exited with status {done.returncode}: {' '.join(last)}"
        if not report.exists():
            text = f"the test process exited with status {done.returncode} before the tests were finished"
        yield Finding(Rule.SUITE, subject.label, text, str(tests))


def run_pytest(
    subject: Subject,
    tests: Path,
    *options: str,
    path: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> subprocess.CompletedProcess[str] | None:
    """Run pytest; None if it does not end in time. `path`: folder that comes before those of the plugin."""
    paths = [path, *subject.path] if path else subject.path
    text = os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *options,
        str(tests.resolve()),
    ]
    try:
        return run_child(
            command,
            timeout_s,
            env={**os.environ, "PYTHONPATH": text, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=tests if tests.is_dir() else tests.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
    except subprocess.TimeoutExpired:
        return None


def passes(
    subject: Subject, tests: Path, folder: Path, path: Path, timeout_s: float = TIMEOUT_S
) -> bool:
    """Return True if all tests ran to their end and passed. `folder`: for the report, which pytest writes last."""
    report = folder / "passed.xml"
    report.unlink(missing_ok=True)
    done = run_pytest(subject, tests, "-x", f"--junitxml={report}", path=path, timeout_s=timeout_s)
    return done is not None and done.returncode == 0 and report.exists()


def _all_skipped(report: Path) -> list[str]:
    """Reason of each test, where not one ran; empty if one did."""
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it just now
    skipped = [each for case in cases for each in case.findall("skipped")]
    return [each.get("message") or "" for each in skipped] if len(skipped) == len(cases) else []


def _failures(report: Path) -> list[tuple[str, str]]:
    """Names of failed tests with the first line of their messages."""
    found = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it just now
        for problem in (*case.findall("failure"), *case.findall("error")):
            lines = (problem.get("message") or "").splitlines() or [""]
            found.append((f"{case.get('classname')}::{case.get('name')}", lines[0][:200]))
    return found


def _declared_lacks(report: Path) -> Iterator[str]:
    """Capability flags that are the reason of skipped tests."""
    for skipped in ET.parse(report).iter("skipped"):  # noqa: S314 - pytest wrote it just now
        if found := FLAG.fullmatch(skipped.get("message") or ""):
            yield found[1]
