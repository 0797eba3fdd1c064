"""Templates: one per kind, whose files are complete and valid."""

from __future__ import annotations

import ast
import tomllib

import pytest
from packaging.requirements import Requirement

from tenonry.errors import ConfigError
from tenonry.plugin import Point
from tenonry.version import __version__
from tenonry_author_tools.scaffold import kinds, package_files, version_range, write_package
from tenonry_commands.plugins import points
from tenonry_testkit.suites import SUITES

POINTS = {point.kind: point for point in points() if point.group.startswith("tenonry.")}


def test_every_kind_and_first_party_point_has_a_template():
    assert kinds() == sorted(POINTS)


@pytest.mark.parametrize("kind", kinds())
def test_files_are_complete(kind: str):
    files = package_files(POINTS[kind], "short-first")
    assert {"pyproject.toml", "README.md", ".github/workflows/ci.yml"} < files.keys()
    assert {"src/short_first/plugin.py", "tests/test_plugin.py"} < files.keys()
    for path, text in files.items():
        if path.endswith(".py"):
            assert "$" not in text, path
            assert ast.get_docstring(ast.parse(text)), path
    assert "](badge.svg)" in files["README.md"]
    assert "not checked" in files["badge.svg"]
    assert "plugins check" in files[".github/workflows/ci.yml"]


@pytest.mark.parametrize("kind", sorted({*kinds()} & {*SUITES}))
def test_the_tests_derive_from_the_suite_of_the_kind(kind: str):
    tests = package_files(POINTS[kind], "short-first")["tests/test_plugin.py"]
    suite = SUITES[kind]
    assert f"from {suite.module} import " in tests
    assert f"{suite.name})" in tests


@pytest.mark.parametrize("kind", kinds())
def test_the_command_of_an_alpha_kind_allows_it(kind: str):
    readme = package_files(POINTS[kind], "short-first")["README.md"]
    assert ("--allow-experimental-plugins" in readme) == (POINTS[kind].tier == "alpha")


@pytest.mark.parametrize("kind", kinds())
def test_metadata_names_the_plugin_and_bounds_this_project(kind: str):
    project = tomllib.loads(package_files(POINTS[kind], "short-first")["pyproject.toml"])["project"]
    assert project["name"] == "short-first"
    target = project["entry-points"][POINTS[kind].group]["short-first"]
    assert target.startswith("short_first.plugin")
    for line in project["dependencies"] + project["optional-dependencies"]["test"]:
        requirement = Requirement(line)
        if requirement.name.startswith("tenonry"):
            assert requirement.specifier.contains(__version__), line
            assert not requirement.specifier.contains("99"), line


@pytest.mark.parametrize("kind", ["scheduler", "scheduling_policy"])
def test_long_suites_run_on_all_cores(kind: str):
    found = tomllib.loads(package_files(POINTS[kind], "short-first")["pyproject.toml"])
    assert "-n auto" in found["tool"]["pytest"]["ini_options"]["addopts"]
    assert "pytest-xdist>=3" in found["project"]["optional-dependencies"]["test"]


@pytest.mark.parametrize(("version", "wanted"), [("0.1.0", ">=0.1,<0.2"), ("1.9.3", ">=1.9,<1.10")])
def test_the_range_ends_where_the_next_version_begins(version: str, wanted: str):
    assert version_range(version) == wanted


@pytest.mark.parametrize(
    "name", ["", "Short", "1st", "a--b", "-a", "a_b", "a b", "class", "a/b", "tests"]
)
def test_a_name_must_be_a_package(name: str):
    with pytest.raises(ConfigError, match="lower-case words"):
        package_files(POINTS["scheduler"], name)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--into"):
        write_package(POINTS["scheduler"], "short-first", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_point_of_others_has_no_template():
    assert Point("acme.samplers").kind not in kinds()
