"""pip and compiled files: the programs that fill an environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from dev import paths
from dev.console import stop

# Half of what is installed; the few of these modules that a process imports are compiled then.
SELDOM_IMPORTED = (
    r"/(tests|transformers/models|torch/(_inductor|testing)|ray/(rllib|data|serve|tune|train|llm|dashboard)"
    r"|sympy/physics|networkx|pygments/lexers|pip|setuptools|mypyc)/"
)
# Lines of pip that report progress; an error is among the others.
PROGRESS = re.compile(
    r"\s*(Requirement already|Looking in|Obtaining|Collecting|Using cached|Downloading|Preparing|Getting"
    r"|Checking|Building|Created|Stored|Installing|Attempting|Found existing|Uninstalling|Processing"
    r"|Link requires|\[notice\]|$)"
)
SHOWN_LINES = 12
# Without network pip retries, warns of each failure, and ends with the report that no version was found.
UNREACHABLE = re.compile(r"Retrying \(Retry\(total=0,")


def make_venv(folder: Path) -> None:
    """Make a virtual environment in `folder`."""
    command = [sys.executable, "-m", "venv", str(folder)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        stop(
            f"{sys.executable} cannot make a virtual environment in {folder}. On Debian and Ubuntu the module is a "
            f"package: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv\n"
            + relevant(done.stdout + done.stderr)
        )


def compile_installed(package: str = "", *, jobs: int = 0) -> None:
    """Compile what pip installed, on all cores; pip would use one. Files that no Python can read are left out."""
    options = ["-qq", "-j", str(jobs), "-x", SELDOM_IMPORTED]
    pattern = f"lib/*/site-packages/{package}" if package else "lib"
    for folder in paths.VENV.glob(pattern):
        command = [str(paths.PYTHON), "-m", "compileall", *options, str(folder)]
        subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            env=test_env(),
        )


def pip(python: Path, *words: str, log: Path) -> None:
    """Run `pip install WORDS` under the constraints, in the root: paths in requirements.txt start there.

    What pip prints is appended to `log`; if it fails, its last lines that matter are shown. Nothing is compiled.
    """
    options = ["--disable-pip-version-check", "--progress-bar=off", "--no-compile"]
    options += ["-c", "constraints.txt"]
    command = [str(python), "-m", "pip", "install", *options, *words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+", encoding="utf-8") as file:
        start = file.tell()
        done = subprocess.run(command, cwd=paths.ROOT, stdout=file, stderr=file, check=False)
        file.seek(start)
        printed = file.read()
    if done.returncode and UNREACHABLE.search(printed):
        stop(
            f"pip cannot reach the package index; connect this machine, or set PIP_INDEX_URL to an index or "
            f"PIP_FIND_LINKS to a folder that has the packages, and run the command again. {log} has pip's output"
        )
    if done.returncode:
        stop(
            f"pip ended with status {done.returncode}; {log} has all that it printed, of which this matters:\n"
            + relevant(printed)
        )


def relevant(printed: str) -> str:
    """Return the last lines of an installer that report more than progress, indented."""
    lines = [line for line in printed.splitlines() if not PROGRESS.match(line)]
    return "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])


def test_env() -> dict[str, str]:
    """Return the environment for tests: small tensors want one thread, and cores are shared.

    The tests start hundreds of processes: each would compile the tree again if none may keep what it compiled.
    """
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def become(*command: object, env: dict[str, str] | None = None) -> NoReturn:
    """Turn into `command`; signals and exit statuses are its own."""
    os.execve(str(command[0]), [str(word) for word in command], env or dict(os.environ))
