"""The corpus in the tests of all distributions, by kind. A plugin of pytest, loaded by `suite_strength.corpus`.

A broken plugin is a case marked `broken(kind, …)`, which passes if the suite rejects it. A correct one is a class that
derives from a suite, or a case marked `correct(kind)`; it is accepted if a test passes and none fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry_testkit.suites import SUITES

PROPERTY = "strength"  # user property of a report: [role, kind, name]
BROKEN, CORRECT = "broken", "correct"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to write the outcomes, and which kinds count."""
    parser.addoption("--strength-file")
    parser.addoption("--strength-kinds", default="")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the corpus alone, each case labelled."""
    kinds = set(filter(None, config.getoption("--strength-kinds").split(",")))
    kept = []
    for item in items:
        labels = [label for label in labels_of(item) if not kinds or label[1] in kinds]
        item.user_properties += [(PROPERTY, label) for label in labels]
        if labels:
            kept.append(item)
    items[:] = kept


def labels_of(item: pytest.Item) -> Iterator[tuple[str, str, str]]:
    """Role, kind and name of a case; several kinds may have one suite. Raises KeyError for a kind without a suite."""
    for role in (BROKEN, CORRECT):
        for mark in item.iter_markers(role):
            for kind in mark.args:
                SUITES[kind]
                yield role, kind, item.nodeid
        if item.get_closest_marker(role):
            return
    cls = getattr(item, "cls", None)
    for kind in kinds_of(cls) if cls else ():
        yield CORRECT, kind, item.nodeid.rpartition("::")[0]


def kinds_of(cls: type[Any]) -> list[str]:
    """Kinds of the plugins that a class names for the suite it derives from; none for a class without a suite.

    A suite that derives from another one counts as itself, and one of several kinds for those that the class names.
    """
    for base in cls.__mro__[1:]:
        where = base.__module__, base.__name__
        found = [kind for kind, suite in SUITES.items() if (suite.module, suite.name) == where]
        if found:
            named = [
                kind for kind in found if getattr(cls, SUITES[kind].attribute, None) is not None
            ]
            return named or found[:1]
    return []


class Outcomes:
    """Outcomes of the cases, in the process that pytest was started in."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seen: dict[tuple[str, str, str], set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a phase of a test ended; setups and teardowns count where they fail or skip."""
        if report.when != "call" and report.outcome == "passed":
            return
        for name, label in report.user_properties:
            if name == PROPERTY:
                role, kind, case = label  # type: ignore[misc]
                self.seen.setdefault((role, kind, case), set()).add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        """Write what was seen."""
        rows = [[*label, sorted(outcomes)] for label, outcomes in self.seen.items()]
        self.file.write_text(json.dumps(rows), "utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Note outcomes, but not in the testers of pytest-xdist, which send their reports."""
    file = config.getoption("--strength-file")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(file)))
