"""Environments of the client libraries, below `.venv`: made once per set of pinned versions. Test process."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[2] / ".venv" / "clients"
TIMEOUT_S = 420


class Unavailable(Exception):
    """The libraries cannot be installed here; the text contains the reason."""


def python_with(requirements: str) -> list[str]:
    """Return the command of a Python with the pinned requirements of a file. Raises Unavailable."""
    source = HERE / requirements
    folder = _folder(Path(requirements).stem, source.read_bytes() + sys.version.encode())
    python = folder / "bin" / "python"
    # The pip of this environment, and nothing compiled: programs compile what they import, a part of all.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-compile"]
    commands: list[list[object]] = [
        [sys.executable, "-m", "venv", "--without-pip", folder],
        [*pip, "--quiet", "--disable-pip-version-check", "-r", source],
    ]
    _make(folder, commands, Path(requirements))
    return [str(python)]


def node_with(package: str) -> list[str]:
    """Return the command of Node.js and the folder where `package`'s dependencies are. Raises Unavailable."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    source = HERE / package
    folder = _folder("node", b"".join(file.read_bytes() for file in sorted(source.iterdir())))
    install = ["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--silent"]
    _make(folder, [["cp", "-r", f"{source}/.", folder], install], Path(package))
    return ["node", str(folder)]


def _folder(name: str, content: bytes) -> Path:
    return FOLDER / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"


def _make(folder: Path, commands: list[list[object]], what: Path) -> None:
    done = folder / "done"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for command in commands:
            words = [str(word) for word in command]
            try:
                ended = subprocess.run(
                    words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{what}: {words[0]} took more than {TIMEOUT_S} s") from None
            if ended.returncode:
                last = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
                raise Unavailable(f"{what} cannot be installed: {' '.join(last)}")
        done.touch()
