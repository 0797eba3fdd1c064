"""The plan: made once, sent as text, never rediscovered."""

from __future__ import annotations

import msgspec
import pytest

from tenonry.errors import PluginError
from tenonry.info import PluginRecord
from tenonry.plugin.checks import load_options
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_testkit.kernel.plugins import STAT_LOGGER

SCHEDULER = PluginRecord(
    kind="scheduler", name="s", target="a:B", distribution="tenonry", version="0.1.0"
)
LOGGERS = tuple(
    PluginRecord(
        kind="stat_logger",
        name=name,
        target=f"{name}:L",
        distribution="no-such-dist",
        version="7",
        options={"x": [1]},
    )
    for name in ("one", "two")
)
HOOKS = (PluginRecord("hook_module", "h", "h_mod", "h-dist", "3"),)
PLAN = PluginPlan((SCHEDULER, *LOGGERS), HOOKS)


def test_it_travels_as_text():
    assert isinstance(PLAN.encode(), str)
    assert PluginPlan.decode(PLAN.encode()) == PLAN


def test_garbage_is_no_plan():
    with pytest.raises(msgspec.ValidationError):
        PluginPlan.decode('{"entries": [{"kind": 5}]}')


def test_entries_are_found_by_kind():
    assert PLAN.get("scheduler") is SCHEDULER
    assert PLAN.find("worker") is None
    assert [entry.name for entry in PLAN.all("stat_logger")] == ["one", "two"]
    with pytest.raises(
        PluginError,
        match=r"the plan has no worker; it names \['scheduler', 'stat_logger', 'stat_logger'\]",
    ):
        PLAN.get("worker")


def test_records_name_every_plugin_in_use():
    assert [
        (record.kind, record.name, record.distribution, record.version) for record in PLAN.records()
    ] == [
        ("scheduler", "s", "tenonry", "0.1.0"),
        ("stat_logger", "one", "no-such-dist", "7"),
        ("stat_logger", "two", "no-such-dist", "7"),
        ("hook_module", "h", "h-dist", "3"),
    ]


def test_versions_are_those_of_the_plan_and_those_found_here():
    assert PLAN.versions() == {"tenonry": "0.1.0", "no-such-dist": "7"}
    assert PLAN.versions_here() == {"tenonry": "0.1.0", "no-such-dist": "missing"}


@pytest.mark.parametrize(
    ("entry", "label"),
    [
        (SCHEDULER, "scheduler 's' (a:B, tenonry 0.1.0)"),
        (LOGGERS[0], "stat logger 'one' (one:L, no-such-dist 7)"),
        (
            PluginRecord(kind="worker", name="./w.py:W", target="h:W", path="/x/w.py"),
            "worker './w.py:W' (/x/w.py)",
        ),
        (PluginRecord(kind="worker", name="w", target="t:W"), "worker 'w' (t:W, no distribution)"),
    ],
)
def test_a_label_says_where_a_plugin_comes_from(entry, label):
    assert entry.label() == label


def test_options_of_a_file_plugin_are_checked_where_it_arrives():
    entry = PluginRecord(
        kind="stat_logger",
        name="x",
        target="tenonry_file_test:Mine",
        source=STAT_LOGGER,
        path="/x.py",
    )
    bad = msgspec.structs.replace(entry, options={"level": 9})
    with pytest.raises(PluginError, match="level=9: Input should be less than or equal to 3"):
        load_options(bad, load_class(bad))
