"""Runs of the tests: the tiers, Ray beside the others, and failures that are run once more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from house import ROOT

from dev import environment, paths, programs, testing


@pytest.mark.parametrize(
    ("other_status", "ray_status", "status"), [(0, 0, 0), (1, 0, 1), (0, -9, 1)]
)
@pytest.mark.integration
def test_all_tests_run_and_each_failure_counts(
    other_status, ray_status, status, tmp_path, monkeypatch, capfd
):
    """Ray's are alone in a process, which it may end; their output comes last."""
    end = "exit 0" if not ray_status else "kill -9 $$"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@"\nnice >> {tmp_path}/nice\n'
        f'case "$*" in *"-n "*) exit {other_status};; esac\n{end}\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(paths, "PYTHON", python)
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    assert testing.test([]) == status
    printed = capfd.readouterr().out.splitlines()
    assert [line.split()[:6] for line in printed] == 2 * [
        ["-m", "pytest", "-q", "-m", "not", "nightly"]
    ]
    lowered = min(19, os.getpriority(os.PRIO_PROCESS, 0) + testing.NICENESS)
    assert {int(line) for line in (tmp_path / "nice").read_text().split()} == {lowered}
    for path in testing.ALONE:
        assert (ROOT / path).exists()
        assert f"--deselect={path}" in printed[0].split()
        assert path in printed[1].split()


@pytest.mark.integration
def test_what_takes_minutes_runs_too_with_all(tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(paths, "PYTHON", python)
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    assert testing.test(["--all"]) == 0
    printed = capfd.readouterr().out
    assert printed.count("-m pytest -q --durations") == 2
    assert "nightly" not in printed


@pytest.mark.parametrize("flags", [["--unit"], ["-m", "unit"]])
def test_the_tier_unit_is_one_run_of_the_folders_that_have_it(flags, monkeypatch):
    ran = []
    monkeypatch.setattr(programs, "become", lambda *words, env: ran.append(words) or sys.exit(0))
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    for more in ([], ["core/tests", "-x"]):
        with pytest.raises(SystemExit):
            testing.test([*flags, *more])
    (_, *words), (_, *named) = ran
    unit = ["-m", "pytest", "-q", "-m", testing.UNIT, testing.UNIT_EFFORT]
    assert words[:6] == unit
    assert named == [*unit, "core/tests", "-x"]
    folders = [word for word in words if word.endswith(("tests", "architecture"))]
    assert {"core/tests", "plugins/recovery/tests", "tests/architecture"} <= set(folders)
    assert not [folder for folder in folders if not (ROOT / folder).is_dir()]


@pytest.fixture
def three_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with three tests, each of which passes in its nth run, for the n in its file."""
    text = """
import pathlib, pytest
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_nth_run(name):
    file = pathlib.Path(name)
    left = int(file.read_text()) - 1
    file.write_text(str(left))
    assert left <= 0
"""
    (tmp_path / "test_nth.py").write_text(text)
    (tmp_path / "test_ray.py").write_text("def test_ray(): pass")
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(testing, "ALONE", ("test_ray.py",))
    # Only what the options of these runs need is imported, by each of their ten processes.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin,tenonry_testkit.pytest_plugin")
    monkeypatch.setattr(testing, "TESTERS", 1)
    monkeypatch.setattr(testing, "HEAD_START_S", 0)
    monkeypatch.setattr(testing, "NICENESS", 0)
    monkeypatch.setattr(paths, "PYTHON", sys.executable)
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("passing_runs", "status", "left"),
    [
        ((1, 2, 2), 0, [0, 0, 0]),  # two failed: each is run once more, the third is not
        ((1, 1, 1), 0, [0, 0, 0]),
        ((1, 1, 3), 1, [0, 0, 1]),
        ((2, 2, 2), 1, [1, 1, 1]),  # more than two: nothing is
    ],
)
@pytest.mark.integration
def test_a_few_that_failed_are_run_once_more_and_races_named(
    passing_runs, status, left, three_runs, capfd
):
    for name, runs in zip("abc", passing_runs, strict=True):
        (three_runs / name).write_text(str(runs))
    assert testing.test([]) == status
    assert [int((three_runs / name).read_text()) for name in "abc"] == left
    races = ", ".join(f"test_nth.py::test_nth_run[{name}]" for name in "bc")
    is_named = f"UNSTABLE: {races} passed alone: a race" in capfd.readouterr().err
    assert is_named == (passing_runs == (1, 2, 2))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.integration
def test_one_tester_goes_ahead_in_a_new_clone(is_new, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$1 ahead: $TESTERS_HEAD_START_S"\n')
    python.chmod(0o755)
    if not is_new:
        compiled = tmp_path / testing.LAST_COMPILED.replace("*", "pyc")
        compiled.parent.mkdir(parents=True)
        compiled.touch()
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "PYTHON", python)
    monkeypatch.setattr(environment, "ensure_environment", lambda: None)
    monkeypatch.delenv(
        "TESTERS_HEAD_START_S", raising=False
    )  # in a new clone this test has it, too
    monkeypatch.chdir(tmp_path)
    testing.test([])
    ahead = f"-m ahead: {testing.HEAD_START_S if is_new else ''}"
    assert capfd.readouterr().out.splitlines() == [ahead, "-m ahead: "]
    assert list((ROOT / testing.LAST_COMPILED).parent.parent.glob("test_size.py"))
