"""Static checks."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dev import environment, paths
from dev.console import PRINTING, say, stop, summary

AT_A_TIME = 2  # environments of distributions: one per core


def check(words: list[str]) -> int:
    """Run the static checks, all of them even when one fails."""
    environment.ensure_environment()
    fix = "--fix" in words
    checks: dict[str, list[str | Path]] = {
        "ruff": ["-m", "ruff", "check", *["--fix"] * fix, "."],
        "format": ["-m", "ruff", "format", *["--check"] * (not fix), "."],
        "mypy": ["-m", "mypy"],
        "layers": [paths.VENV / "bin" / "lint-imports"],
        "declared": ["tests/architecture/declared_imports.py"],
    }
    chosen = [word for word in words if word != "--fix"] or list(checks)
    for name in chosen:
        if name not in checks:
            stop(f"no check {name!r}; there are: {', '.join(checks)}")

    def status(name: str) -> int:
        command = [paths.PYTHON, *checks[name]]
        done = subprocess.run(
            command, cwd=paths.ROOT, capture_output=True, encoding="utf-8", check=False
        )
        with PRINTING:
            say(f"check {name}")
            print(done.stdout + done.stderr, end="", flush=True)
        return done.returncode

    # Side by side, but that two programs do not mend the same files.
    with ThreadPoolExecutor(1 if fix else AT_A_TIME) as pool:
        results = dict(zip(chosen, pool.map(status, chosen), strict=True))
    return summary("check", results)
