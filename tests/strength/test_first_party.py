"""First-party plugins whose suites need no more than a name, and that have no test class of their own."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.suites import SUITES

GROUPS = {
    "command": "tenonry.commands",
    "plugin_command": "tenonry.plugin_commands",
    "progress_bar": "tenonry.progress_bars",
    "request_check": "tenonry.request_checks",
}
# Flags of `tenonry` itself stand in the group of the commands, and are none.
FOUND = [
    pytest.param(kind, each.value, id=f"{kind}-{each.name}", marks=pytest.mark.correct(kind))
    for kind, group in GROUPS.items()
    for each in sorted(entry_points(group=group))
    if not each.name.startswith("--") and each.dist and each.dist.name.startswith("tenonry")
]


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "target"), FOUND)
def test_the_suite_accepts_it(kind: str, target: str):
    suite = SUITES[kind]
    fields = {suite.attribute: target}
    assert failing_tests(type("Suite", (suite.load(),), fields)) == {}


def test_each_kind_has_some():
    assert {param.values[0] for param in FOUND} == set(GROUPS)
