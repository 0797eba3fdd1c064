"""Tests in `.venv`: a tier, what a change touches, or what pytest's arguments choose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from dev import changed, environment, paths, programs
from dev.console import say, summary
from dev.isolated import AT_A_TIME, test_isolated
from dev.tree import distributions

TESTERS = 2 * AT_A_TIME  # tests wait for processes, too, and leave a third of the cores' time idle
# In a clone that is new, one tester compiles the test files, and the others, which begin later, find them compiled.
HEAD_START_S = 7
LAST_COMPILED = "tests/architecture/__pycache__/test_size.*"
# Helper processes start with this priority, which gives them little of the time beside testers with a higher one.
NICENESS = 10
LONGEST = ("--durations=80", "--durations-min=2")  # what to make cheaper, at the end of each run
NONE_COLLECTED = 5  # exit status of pytest if no test is left
TRIED_AGAIN = 2  # tests, at most; more failures are no race
# The tier `unit` as an expression of pytest's `-m`, and the share of the contract suites' examples that it looks at.
UNIT = "not integration and not nightly and not slow"
UNIT_EFFORT = "--testkit-effort=0.2"
USUAL_EFFORT = "--testkit-effort=0.25"  # of the run for every change; `--all` looks at all examples
# In a process of their own: Ray may end a process whose cluster is lost.
ALONE = ("executors/ray/tests", "tests/integration/test_ray.py")


def test(words: list[str]) -> int:
    """Tests in `.venv`: those of a tier or of a change, or those that are named; or each distribution's alone."""
    if words[:1] == ["--isolated"]:
        return test_isolated(words[1:])
    environment.ensure_environment()
    os.chdir(paths.ROOT)
    if words[:2] == ["-m", "unit"]:  # which is no marker of its own
        words = ["--unit", *words[2:]]
    if words[:1] == ["--unit"]:
        named = words[1:] or ["-n", str(AT_A_TIME), "--dist", "loadfile", *unit_folders()]
        pytest("-q", "-m", UNIT, UNIT_EFFORT, *named)
    if words[:1] == ["--changed"]:
        return test_changed(words[1:])
    if words not in ([], ["--all"]):
        pytest(*words)
    return test_everything(is_all=bool(words))


def pytest(*words: str) -> NoReturn:
    """Become pytest."""
    programs.become(paths.PYTHON, "-m", "pytest", *words, env=programs.test_env())


def test_changed(words: list[str]) -> int:
    """Run what the change since a commit touches: of every change's tests, or with `--nightly` of the others."""
    is_nightly = "--nightly" in words
    commit = changed.base([word for word in words if word != "--nightly"])
    chosen = changed.touched(commit, is_direct=is_nightly)
    if not chosen:
        say(f"the change since {commit[:8]} touches no test")
        return 0
    say(f"tests that the change since {commit[:8]} touches: {' '.join(chosen)}")
    tier = (
        ["-q", "-x", "-m", "nightly"] if is_nightly else ["-q", "-m", "not nightly", USUAL_EFFORT]
    )
    results = {}
    alone = [path for path in chosen if path.startswith(ALONE)]
    for name, files, testers in (
        ("all but Ray", [path for path in chosen if path not in alone], AT_A_TIME),
        ("Ray", alone, 0),
    ):
        if files:
            command = [
                str(paths.PYTHON),
                "-m",
                "pytest",
                *tier,
                "-n",
                str(testers),
                "--dist",
                "loadfile",
                *files,
            ]
            status = subprocess.run(command, env=programs.test_env(), check=False).returncode
            results[name] = 0 if status == NONE_COLLECTED else status
    return summary("test", results)


def test_everything(*, is_all: bool) -> int:
    """Run the tests of every change, or all, Ray's beside the others."""
    if is_all:
        os.environ["TENONRY_EXPLORE"] = "1"  # hypothesis draws other examples than the last time
    env = programs.test_env()
    if not list(paths.ROOT.glob(LAST_COMPILED)):
        env["TESTERS_HEAD_START_S"] = str(HEAD_START_S)
    with tempfile.TemporaryFile() as output_of_ray, tempfile.TemporaryDirectory() as caches:
        chosen = [] if is_all else ["-m", "not nightly", USUAL_EFFORT]
        command = [str(paths.PYTHON), "-m", "pytest", "-q", *chosen, *LONGEST, "-o"]
        ray_command = [*command, f"cache_dir={caches}/ray", *ALONE]
        # Ray's tests wait more than they compute, so they share the time of the others.
        ray = subprocess.Popen(
            ray_command,
            env=programs.test_env(),
            stdout=output_of_ray,
            stderr=subprocess.STDOUT,
            preexec_fn=lower,  # noqa: PLW1509 - no other thread runs
        )
        others = [*command, f"cache_dir={caches}/others"]
        in_parallel = [
            "-n",
            str(TESTERS),
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",  # files with few tests, but long ones, would come last
            *[f"--deselect={path}" for path in ALONE],
        ]
        status = subprocess.run(
            [*others, *in_parallel], env=env, check=False, preexec_fn=lower
        ).returncode
        ray_status = ray.wait()
        output_of_ray.seek(0)
        sys.stdout.write(output_of_ray.read().decode())
        status = without_races(others, Path(caches, "others"), status)
        ray_status = without_races(ray_command, Path(caches, "ray"), ray_status)
    return summary("test", {"all but Ray": status, "Ray": ray_status})


def unit_folders() -> list[str]:
    """Return the folders of tests of the tier `unit`; in the others, collecting would find none."""
    own = [f"{folder.relative_to(paths.ROOT)}/tests" for folder in distributions().values()]
    return [folder for folder in own if folder not in ALONE] + ["tests/architecture", "tests/dev"]


def lower() -> None:
    """Lower the priority of this process, in a child before its program begins."""
    os.nice(NICENESS)


def without_races(command: list[str], cache: Path, status: int) -> int:
    """Run the one or two tests that failed once more, alone, and return the status of that run; more are no race.

    One that passes then is named as unstable: a race, in the test or in what it tests, which is to be mended.
    """
    failed = cache / "v" / "cache" / "lastfailed"
    names = list(json.loads(failed.read_text("utf-8"))) if failed.exists() else []
    if status != 1 or not 0 < len(names) <= TRIED_AGAIN:
        return status
    say("once more, alone: " + ", ".join(names))
    alone = subprocess.run([*command, "--lf"], env=programs.test_env(), check=False).returncode
    if alone == 0:
        say(
            "UNSTABLE: "
            + ", ".join(names)
            + " passed alone: a race, in the test or in what it tests"
        )
    return alone
