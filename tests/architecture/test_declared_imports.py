"""Imports are a subset of a distribution's declared ones; and the checker detects violations."""

from __future__ import annotations

from pathlib import Path

import pytest
from declared_imports import undeclared
from house import distributions


def make_tree(root: Path, source: str, test: str = "", extra: str = "") -> Path:
    folder = root / "plugins" / "thing"
    (folder / "src" / "tenonry_thing").mkdir(parents=True)
    (folder / "tests").mkdir()
    project = f'[project]\nname = "tenonry-thing"\ndependencies = ["numpy>=1.26"]\n{extra}'
    (folder / "pyproject.toml").write_text(project)
    (folder / "src" / "tenonry_thing" / "__init__.py").write_text(source)
    (folder / "tests" / "test_thing.py").write_text(test)
    return root


@pytest.mark.slow
def test_every_import_is_declared():
    assert undeclared(distributions()) == []


def test_undeclared_import_in_a_function_is_named_with_its_line(tmp_path: Path):
    root = make_tree(tmp_path, "import json\nimport numpy\n\n\ndef f():\n    import yaml.nodes\n")
    (line,) = undeclared(distributions(root), root)
    assert "tenonry_thing/__init__.py:6: imports yaml (pyyaml)" in line


def test_extra_counts_as_declared(tmp_path: Path):
    extra = '[project.optional-dependencies]\nfast = ["PyYAML>=6"]\n'
    root = make_tree(tmp_path, "import yaml\n", extra=extra)
    assert undeclared(distributions(root), root) == []


def test_extra_for_tests_does_not_count_for_the_sources(tmp_path: Path):
    extra = '[project.optional-dependencies]\ntest = ["pyyaml"]\n'
    root = make_tree(
        tmp_path,
        "import yaml\n",
        test="import pytest\nimport yaml\nimport tenonry_thing\n",
        extra=extra,
    )
    (line,) = undeclared(distributions(root), root)
    assert "src" in line


def test_import_of_what_is_not_installed_is_named(tmp_path: Path):
    root = make_tree(tmp_path, "", test="from no_such_library import thing\n")
    (line,) = undeclared(distributions(root), root)
    assert "test_thing.py:1: imports no_such_library (nothing that is installed)" in line
