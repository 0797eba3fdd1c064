"""`tenonry bisect`: the faulty distribution is found, wherever it is; other causes are told apart from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry.cli import main
from tenonry.plugin.discovery import EXCLUDED, excluded
from tenonry_author_tools.bisect_state import BisectState
from tenonry_commands.start_flags import run_start_flags
from tenonry_testkit.plugins import TmpPlugins

NAMES = tuple("abcdefghi")


def search(names: tuple[str, ...], faulty: set[str]) -> tuple[BisectState, int]:
    """Run the search where a start is bad with all of `faulty`; returns the end and the number of tests."""
    state, count = BisectState(names=names, suspects=names), 0
    while not state.verdict:
        state = state.next(is_bad=faulty <= {*state.tested})
        count += 1
    return state, count


@pytest.mark.parametrize("number", range(1, len(NAMES) + 1))
def test_each_culprit_is_found(number: int):
    names = NAMES[:number]
    for culprit in names:
        state, count = search(names, {culprit})
        assert state.culprit == culprit
        assert count <= 2 + number.bit_length() + 1


def test_a_fault_without_plugins_is_told_apart():
    state, count = search(NAMES, set())
    assert (state.culprit, count) == ("", 1)
    assert "without plugins of others" in state.verdict


@pytest.mark.parametrize("faulty", [{"a", "i"}, {"b", "z"}])
def test_no_single_culprit(faulty: set[str]):
    state, _ = search(NAMES, faulty)
    assert state.culprit == ""
    assert "alone" in state.verdict


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TmpPlugins]:
    monkeypatch.setenv(EXCLUDED, "")  # restored at the end
    monkeypatch.chdir(tmp_path)
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        for name in ("acme", "brand", "corp"):
            plugins.distribution(name, entry_points={"tenonry.plugins": {name: name}})
        yield plugins


def test_step_by_step(site: TmpPlugins, capsys):
    assert main(["bisect", "start"]) == 0
    assert "with none, without acme, brand, corp (3 suspects)" in capsys.readouterr().out
    assert main(["bisect", "good"]) == 0
    assert "with acme, brand, without corp" in capsys.readouterr().out
    run_start_flags(["--bisect"])
    assert excluded() == ["corp"]
    assert main(["bisect", "bad"]) == 0
    assert main(["bisect", "good"]) == 0
    assert "with brand, without acme, corp (1 suspects)" in capsys.readouterr().out
    assert main(["bisect", "bad"]) == 0
    assert (
        "brand breaks the start: it fails with it alone, and works without any"
        in capsys.readouterr().out
    )
    assert main(["bisect", "bad"]) == 1
    assert "the search has ended" in capsys.readouterr().err
    assert main(["bisect", "reset"]) == 0
    assert main(["bisect", "good"]) == 1
    assert "no search has begun" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "text"), [
    (["start", "--keep", "none-such"], "--keep none-such: not installed; installed with plugins: acme, brand, corp"),
    (["start", "--keep", "acme", "--keep", "brand", "--keep", "corp"], "nothing to search"),
    (["run"], "give a command"),
    (["run", "--"], "give a command"),
    pytest.param(["run", "--", "no-such-command"], "no-such-command cannot be run", marks=pytest.mark.integration),
    pytest.param(["run", "no-such-command"], "no-such-command cannot be run", marks=pytest.mark.integration),
])  # fmt: skip
def test_refusals(words: list[str], text: str, site: TmpPlugins, capsys):
    assert main(["bisect", *words]) == 1
    assert text in capsys.readouterr().err


def test_a_state_that_cannot_be_read_is_named(site: TmpPlugins, capsys):
    Path("tenonry-bisect.json").write_text(json.dumps({"names": 3}))
    assert main(["bisect", "good"]) == 1
    assert "tenonry-bisect.json cannot be read" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize(("code", "status", "text"), [
    (f"import os, sys; sys.exit('brand' not in os.environ['{EXCLUDED}'])", 0, "brand breaks the start"),
    ("raise SystemExit(1)", 1, "without plugins of others"),
    ("raise SystemExit(125)", 1, "it cannot decide"),
])  # fmt: skip
def test_a_command_decides(code: str, status: int, text: str, site: TmpPlugins, capsys):
    assert main(["bisect", "run", "--keep", "corp", sys.executable, "-S", "-c", code]) == status
    captured = capsys.readouterr()
    assert text in captured.out + captured.err


@pytest.mark.integration
def test_a_command_that_hangs_is_bad(site: TmpPlugins, capsys):
    code = "import threading; threading.Event().wait()"
    words = ["bisect", "run", "--timeout", "0.2", sys.executable, "-S", "-c", code]
    assert main(words) == 1
    assert "bad: with none" in capsys.readouterr().out
