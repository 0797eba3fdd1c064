"""Tests of a distribution in an environment that holds only what it declares."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dev import environment, paths, programs
from dev.console import PRINTING, outcome, say, summary
from dev.tree import choose, closure, distributions, metadata, required, without_dependencies

AT_A_TIME = 2  # environments of distributions: one per core


def test_isolated(words: list[str]) -> int:
    """Test distributions, two at a time, each with the kernel, the testkit and what it declares, and no more.

    What is installed are built wheels, no links into the tree: a file that a wheel lacks is missed here. An
    extra called `test` may declare what only the tests need.
    """
    names = choose(words)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = dict(zip(names, pool.map(isolated_status, names), strict=True))
    return summary("isolated", results)


def isolated_status(name: str) -> int:
    """Test one distribution and show what its tests printed and how long all of it took."""
    start = time.monotonic()
    log = paths.ROOT / ".isolated" / f"{name}.log"
    try:
        status = isolate(name, log)
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        log.unlink(missing_ok=True)
    except SystemExit as error:  # no environment: the others still have their turn
        status = 1
        printed = f"{error.code}\n"
    took = time.monotonic() - start
    with PRINTING:
        print(printed, end="", file=sys.stderr, flush=True)
        say(f"isolated {name}: {outcome(status)}, {took:.0f} s")
    return status


def isolated_requirements(name: str) -> tuple[list[str], list[str]]:
    """Return what the environment of one distribution gets, and what it gets without what that requires.

    Extras stand as what they require: pip 23 does not see that a path with extras answers the bare name.
    """
    known = distributions()
    apart = without_dependencies()
    whole = []
    bare = []
    wanted = closure({"tenonry": set(), "tenonry-testkit": set(), name: {"test"}})
    for dist, asked in wanted.items():
        project = metadata(known[dist])
        lines = [line for extra in asked for line in project["optional-dependencies"][extra]]
        path = f"./{known[dist].relative_to(paths.ROOT)}"
        if dist in apart:
            bare.append(path)
            lines += project["dependencies"]
        else:
            whole.append(path)
        for line in lines:
            requirement, _ = required(line)
            if requirement in apart:
                bare.append(line)
            elif requirement not in known:
                whole.append(line)
    return whole, bare


def isolate(name: str, log: Path) -> int:
    """Build the environment of one distribution, run its tests there, remove it; return pytest's status.

    `log` ends with what pytest printed.
    """
    folder = paths.ROOT / ".isolated" / name
    python = folder / "bin" / "python"
    whole, bare = isolated_requirements(name)
    env = {key: value for key, value in programs.test_env().items() if key != "PYTHONPATH"}
    shutil.rmtree(folder, ignore_errors=True)
    log.unlink(missing_ok=True)
    try:
        programs.make_venv(folder)
        programs.pip(python, *environment.BACKEND, log=log)
        programs.pip(python, *whole, "pytest-timeout", "--no-build-isolation", log=log)
        if bare:
            programs.pip(python, "--no-deps", *bare, "--no-build-isolation", log=log)
        tests = str(distributions()[name] / "tests")
        # Twice the usual limit: the first test of a kind compiles what it imports.
        limit = ["-o", "timeout=120"]
        command = [str(python), "-m", "pytest", "-q", "-c", "pyproject.toml", *limit, tests]
        with log.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                command, cwd=paths.ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, check=False
            )
        return done.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)
