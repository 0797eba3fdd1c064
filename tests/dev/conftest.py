"""Fixtures of the tests of `dev.py`: trees that are copies, and a pip that is not run."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from house import ROOT, distributions

sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from dev import environment, paths, programs  # noqa: E402 - the path comes first


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the files that determine an installation, instead of the real one."""
    for dist in distributions():
        target = tmp_path / dist.folder.relative_to(ROOT)
        target.mkdir(parents=True)
        shutil.copy(dist.folder / "pyproject.toml", target)
    for name in ("pyproject.toml", "requirements.txt", paths.NO_DEPS, "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    venv = tmp_path / ".venv"
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "VENV", venv)
    monkeypatch.setattr(paths, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(paths, "STAMP", venv / "tenonry-installed")
    monkeypatch.setattr(paths, "PIP_LOG", venv / "pip.log")
    monkeypatch.setattr(paths, "LINKS", venv / "links")
    return tmp_path


@pytest.fixture
def pips(copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Arguments of pip, which is not run; environments are made of one file."""
    calls: list[tuple[str, ...]] = []

    def make_venv(folder: Path) -> None:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(programs, "make_venv", make_venv)
    monkeypatch.setattr(
        programs, "pip", lambda _python, *arguments, **_options: calls.append(arguments)
    )
    monkeypatch.setattr(programs, "compile_installed", lambda *_package, **_options: None)
    monkeypatch.setattr(environment, "is_complete", lambda: False)
    # The contents follow from the project file, as those of real links do.
    monkeypatch.setattr(
        environment,
        "link",
        lambda wheels, folders: [
            shutil.copy(folder / "pyproject.toml", wheels / f"{folder.name}.whl")
            for folder in folders
        ],
    )
    return calls


FILES = {
    ".gitignore": "__pycache__/\n",
    "pyproject.toml": "",
    "README.md": "# A tree\n",
    "docs/how-to/write-a-box.md": "```python\nfrom tenonry.base import VALUE\n```\n",
    "core/pyproject.toml": '[project]\nname = "tenonry"\n'
    '[project.entry-points.things]\nplain = "tenonry.plain:Plain"\n',
    "core/src/tenonry/__init__.py": "",
    "core/src/tenonry/base.py": '"""Base."""\nVALUE = 1\n',
    "core/src/tenonry/plain.py": "from .base import VALUE\n",
    "core/src/tenonry/data.json": "{}",
    "core/tests/conftest.py": "",
    "core/tests/test_base.py": "from tenonry import base\n",
    "core/tests/test_plain.py": 'thing = "tenonry.plain:Plain"\n',
    "core/tests/test_other.py": "import json\n",
    "plugins/box/pyproject.toml": '[project]\nname = "tenonry-box"\n',
    "plugins/box/src/tenonry_box/__init__.py": "import tenonry.plain\n",
    "plugins/box/tests/test_box.py": "import tenonry_box\n",
    "tests/integration/helper.py": "",
    "tests/integration/test_served.py": 'import helper\nwords = ["--thing=plain"]\n',
    "tests/integration/test_alone.py": "",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree of two distributions, instead of the real one."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path
