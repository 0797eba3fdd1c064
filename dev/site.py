"""The site of docs/, built in an environment of its own."""

from __future__ import annotations

import os
import subprocess

from dev import paths, programs
from dev.console import phase

REQUIREMENTS = "docs/requirements.txt"


def docs(words: list[str]) -> int:
    """Run `mkdocs WORDS`; without words, build the site strictly into site/."""
    environment = paths.VENV / "docs"
    python, stamp = environment / "bin" / "python", environment / "requirements.txt"
    wanted = (paths.ROOT / REQUIREMENTS).read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        with phase("installing mkdocs into .venv/docs"):
            if not python.exists():
                programs.make_venv(environment)
            programs.pip(python, "-r", REQUIREMENTS, log=paths.PIP_LOG)
        stamp.write_text(wanted, encoding="utf-8")
    command = [str(python), "-m", "mkdocs", *(words or ["build", "--strict"])]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=paths.ROOT, env=os.environ | quiet, check=False).returncode
