"""Deprecated names that a third party's plugin uses: warnings at a start, by plugin, name, place and successor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry.cli import make_parser
from tenonry_commands import moves
from tenonry_commands.moves import Moves
from tenonry_testkit.plugins import TmpPlugins

NEXT = """
def old_helper():
    pass


old_helper.__deprecated__ = "use new_helper of tenonry_next"
"""
LOGGER = """
from tenonry_next import old_helper
from tenonry.interfaces.stat_logger import StatLogger


class Mine(StatLogger):
    def record(self, record): pass
    def observe(self): old_helper()
"""
LABEL = "stat logger 'acme' (acme_stats:Mine, acme-stats 2.5)"


@pytest.fixture(autouse=True)
def site(tmp_path: Path) -> Iterator[TmpPlugins]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.module("tenonry_next", NEXT)
        plugins.distribution(
            "acme-stats",
            "2.5",
            requires=["tenonry>=0.1"],
            entry_points={
                "tenonry.stat_loggers": {"acme": "acme_stats:Mine"},
                "tenonry.settings": {
                    "stat_logger.acme": "tenonry.interfaces.plugin:PluginSettings"
                },
            },
            modules={"acme_stats": LOGGER},
        )
        yield plugins


def start(*words: str) -> None:
    parser, _ = make_parser("generate")
    parser.parse_args(["hi", "--model", "demo", "--stat-logger", "acme", *words])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "tenonry.plugins"]


def test_a_start_names_plugin_name_place_and_successor_once(caplog, site):
    start()
    (text,) = warnings(caplog)
    used = "uses the deprecated tenonry_next.old_helper: use new_helper of tenonry_next"
    assert text.startswith(f"{LABEL} {used} ({site.folder}/acme_stats.py:3); ")


def test_a_renamed_member_is_named_with_its_successor(caplog, monkeypatch):
    move = Moves("stat_logger", 2, members={"observe": "record_extra"})
    monkeypatch.setattr(moves, "MOVES", (move,))
    start()
    assert any(
        f"{LABEL} uses observe, which is now record_extra (" in one for one in warnings(caplog)
    )


def test_help_and_plugins_of_this_project_are_not_read(caplog, capsys):
    with pytest.raises(SystemExit):
        start("--help")
    make_parser("generate")[0].parse_args(["hi", "--model", "demo", "--stat-logger", "console"])
    assert warnings(caplog) == []
