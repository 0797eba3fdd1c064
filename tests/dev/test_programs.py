"""Compiled files of an environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dev import paths, programs


@pytest.mark.integration
def test_what_was_installed_is_compiled_but_for_what_cannot_be(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    package = copy / ".venv" / "lib" / "package"
    package.mkdir(parents=True)
    seldom = package.parent / "transformers" / "models"
    seldom.mkdir(parents=True)
    for name, text in (("one.py", "value = 1"), ("template.py", "{{ class }}")):
        (package / name).write_text(text)
    (seldom / "two.py").write_text("value = 2")
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    programs.compile_installed()
    assert [file.name.split(".")[0] for file in package.parent.rglob("*.pyc")] == ["one"]
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.integration
def test_one_package_is_compiled_alone(copy: Path, monkeypatch: pytest.MonkeyPatch):
    packages = copy / ".venv" / "lib" / "python3" / "site-packages"
    for name in ("one", "two"):
        (packages / name).mkdir(parents=True)
        (packages / name / "module.py").write_text("value = 1")
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    programs.compile_installed("two", jobs=1)
    assert [file.parent.parent.name for file in packages.rglob("*.pyc")] == ["two"]
    programs.compile_installed("three", jobs=1)  # which could not be installed
    assert len(list(packages.rglob("*.pyc"))) == 1
