"""`tenonry bisect`: the faulty distribution is found, wherever it is; other causes are told apart from it."""

from __future__ import annotations

import itertools
import json
import os
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
    state, count = BisectState(names=names), 0
    while not state.verdict:
        state = state.next(is_bad=faulty <= {*state.tested})
        count += 1
    return state, count


@pytest.mark.parametrize("number", range(1, len(NAMES) + 1))
def test_each_culprit_is_found(number: int):
    names = NAMES[:number]
    for culprit in names:
        state, count = search(names, {culprit})
        assert state.found == (culprit,)
        assert count <= 2 + number.bit_length() + 1


def test_a_fault_without_plugins_is_told_apart():
    state, count = search(NAMES, set())
    assert (state.found, count) == ((), 1)
    assert "without plugins of others" in state.verdict


@pytest.mark.parametrize("number", [2, 3])
def test_several_that_fail_together_are_found(number: int):
    for faulty in itertools.combinations(NAMES, number):
        state, count = search(NAMES, {*faulty})
        assert state.found == faulty
        assert "break the start together" in state.verdict
        assert count <= 2 + number * (len(NAMES).bit_length() + 1)


def test_no_culprit():
    state, count = search(NAMES, {"z"})
    assert (state.found, count) == ((), 2)
    assert "none is at fault" in state.verdict


HOOK = """
from tenonry import hookimpl


@hookimpl
def tenonry_engine_ready(info):
    pass
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TmpPlugins]:
    monkeypatch.setenv(EXCLUDED, "")  # restored at the end
    monkeypatch.chdir(tmp_path)
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        for name in ("acme", "brand", "corp"):
            plugins.distribution(
                name,
                requires=["tenonry>=0.1,<0.2"],
                entry_points={"tenonry.plugins": {name: name}},
                modules={name: HOOK},
            )
        yield plugins


def test_step_by_step(site: TmpPlugins, capsys):
    assert main(["bisect", "start"]) == 0
    assert "with none, without acme, brand, corp (3 suspects)" in capsys.readouterr().out
    assert main(["bisect", "good"]) == 0
    assert "with acme, brand, corp, without none (3 suspects)" in capsys.readouterr().out
    assert main(["bisect", "bad"]) == 0
    assert "with acme, without brand, corp (3 suspects)" in capsys.readouterr().out
    run_start_flags(["--bisect"])
    assert excluded() == ["brand", "corp"]
    assert main(["bisect", "good"]) == 0
    assert "with acme, brand, without corp (2 suspects)" in capsys.readouterr().out
    assert main(["bisect", "bad"]) == 0
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


PRINTS = "print('hello')\nfrom tenonry import hookimpl\n"
REFUSES = """
from importlib.metadata import entry_points
from tenonry import hookimpl
from tenonry.errors import ConfigError

@hookimpl
def tenonry_configured(config):
    from tenonry.plugin.discovery import excluded
    if "other" not in excluded():
        raise ConfigError("not with other")
"""


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(("modules", "words", "text"), [
    ({"prints": PRINTS}, ["doctor"], "prints breaks the start"),
    ({"prints": PRINTS}, ["--checked", "plugins", "list"], "prints breaks the start"),
    ({"other": "", "refuses": REFUSES}, ["doctor"], "other, refuses break the start together"),
])  # fmt: skip
def test_checks_of_others_count(
    modules: dict[str, str], words: list[str], text: str, site: TmpPlugins, monkeypatch, capsys
):
    """A command that examines all plugins does not see those that a step leaves out."""
    monkeypatch.setenv("PYTHONPATH", str(site.folder))
    for name, source in modules.items():
        site.distribution(
            name,
            requires=["tenonry>=0.1,<0.2"],
            entry_points={"tenonry.plugins": {name: f"bisected_{name}"}},
            modules={f"bisected_{name}": source + HOOK},
        )
    assert main(["bisect", "run", sys.executable, "-m", "tenonry", *words]) == 0
    assert text in capsys.readouterr().out
    assert not os.environ[EXCLUDED]
