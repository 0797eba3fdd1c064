"""Files and folders of this repository that the other modules work on."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "tenonry-installed"
PIP_LOG = VENV / "pip.log"
LINKS = VENV / "links"  # the wheels that were installed: links to the folders of the siblings
NO_DEPS = "requirements-no-deps.txt"  # beside requirements.txt: installed without dependencies
