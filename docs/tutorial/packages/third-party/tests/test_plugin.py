"""The conformance suite of commands, and the distributions that this one lists."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from tenonry_testkit.command import CommandContract

from third_party.plugin import ThirdParty


class TestThirdParty(CommandContract):
    command = "third_party.plugin:ThirdParty"
    arguments = ()


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command = ThirdParty()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution `acme` with a plugin is on the path."""
    folder = tmp_path / "acme-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[tenonry.schedulers]\nmine = acme:Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("_installed")
def test_distributions_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert "acme 1.0: scheduler/mine" in lines
    assert not [line for line in lines if line.startswith("tenonry")]


@pytest.mark.usefixtures("_installed")
def test_they_fail_on_demand() -> None:
    assert run("--fail") == 1
