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
    kind = cls and kind_of(cls)
    if kind:
        yield CORRECT, kind, item.nodeid.rpartition("::")[0]


def kind_of(cls: type[Any]) -> str | None:
    """Kind of the plugin that a class tests; None for a class that derives from no suite, and for a suite itself."""
    bases = {(base.__module__, base.__name__) for base in cls.__mro__[1:]}
    found = {kind: each for kind, each in SUITES.items() if (each.module, each.name) in bases}
    if len(found) > 1:  # a suite of two kinds: schedulers and their policies
        named = [kind for kind, suite in found.items() if suite.attribute != kind_attribute(found)]
        if named and getattr(cls, SUITES[named[0]].attribute, None) is not None:
            return named[0]
    return next(iter(found), None)


def kind_attribute(found: dict[str, Any]) -> str:
    """Attribute of the first of several kinds with one suite."""
    return str(next(iter(found.values())).attribute)


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
