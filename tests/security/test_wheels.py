"""Supply chain (class W): nothing in our wheels runs unless it is imported or named.

A `.pth` file, `sitecustomize` or `usercustomize` would run at every start of the interpreter, and files outside the
package could replace those of others.
"""

from __future__ import annotations

import configparser
import importlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "architecture"))

from house import Distribution, distributions

from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import HOOK_MODULES, KINDS, POINTS, SETTINGS

BUILD = """
import os, sys
from hatchling.build import build_wheel
for folder in sys.argv[2:]:
    os.chdir(folder)
    build_wheel(sys.argv[1])
"""
COMPILED = {"tenonry-kernels-cpu"}
AT_START = {"sitecustomize.py", "usercustomize.py"}
OUTSIDE = {"console_scripts": {"tenonry"}, "pytest11": {"tenonry"}}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, zipfile.ZipFile]:
    """Import name → its wheel, built from the tree; the kernels as on a machine without a compiler."""
    folder = tmp_path_factory.mktemp("wheels")
    sources = []
    for dist in distributions():
        source = dist.folder
        if dist.name in COMPILED:  # its build takes away the library that the tree has
            source = folder / dist.name
            shutil.copytree(dist.folder, source)
        sources.append(str(source))
    command = [sys.executable, "-c", BUILD, str(folder), *sources]
    subprocess.run(command, check=True, env={"PATH": "/nonexistent"}, stdout=subprocess.DEVNULL)
    found = {}
    for file in folder.glob("*.whl"):
        found[file.name.partition("-")[0]] = zipfile.ZipFile(file)
    return found


@pytest.mark.slow
def test_a_wheel_of_every_distribution(wheels):
    assert set(wheels) == {dist.import_name for dist in distributions()}


@pytest.mark.slow
def test_files_are_those_of_the_package(wheels):
    """No file lies outside the package, in `*.data`, or runs when the interpreter starts."""
    for name, wheel in wheels.items():
        info = f"{name}-{_version(name)}.dist-info/"
        for path in wheel.namelist():
            assert path.startswith((f"{name}/", info)), (name, path)
            assert ".." not in Path(path).parts, (name, path)
            assert Path(path).name not in AT_START, (name, path)
            assert not path.endswith((".pth", ".egg-link", ".so", ".pyc")), (name, path)


@pytest.mark.slow
def test_files_are_those_of_the_tree(wheels):
    """Each has the bytes that reviewers see, and none is a link."""
    for dist in distributions():
        wheel = wheels[dist.import_name]
        for entry in wheel.infolist():
            assert entry.external_attr >> 28 in {0, 0o10}, (
                dist.name,
                entry.filename,
            )  # plain files
            if ".dist-info/" not in entry.filename:
                source = dist.folder / "src" / entry.filename
                assert source.read_bytes() == wheel.read(entry), (dist.name, entry.filename)


@pytest.mark.slow
def test_entry_points_are_of_known_groups(wheels):
    known = {point.group for point in KINDS.values()} | {
        HOOK_MODULES.group,
        POINTS.group,
        SETTINGS.group,
    }
    for record in installed(POINTS):
        module, _, attribute = record.target.partition(":")
        known.add(getattr(importlib.import_module(module), attribute).group)
    required = {
        dist.import_name: {
            line.partition(">")[0].replace("-", "_") for line in dist.project["dependencies"]
        }
        for dist in distributions()
    }
    for name, wheel in wheels.items():
        for group, entries in _entry_points(name, wheel).items():
            # Settings may be those of a library that the package requires.
            owners = {name} | (required[name] if group == SETTINGS.group else set())
            if group in OUTSIDE:
                assert set(entries) <= OUTSIDE[group], (name, group)
            else:
                assert group in known, (name, group)
            for target in entries.values():
                assert target.partition(":")[0].partition(".")[0] in owners, (name, target)


def test_builds_need_hatchling_alone_and_one_compiles():
    for dist in distributions():
        system = dist.pyproject["build-system"]
        assert [part.partition(">")[0] for part in system["requires"]] == ["hatchling"], dist.name
        assert set(system) == {"requires", "build-backend"}, dist.name
        runs_code = bool(_hooks(dist)) or (dist.folder / "hatch_build.py").exists()
        assert runs_code == (dist.name in COMPILED), dist.name
        assert not (dist.folder / "setup.py").exists()


def _hooks(dist: Distribution) -> list[str]:
    build = dist.pyproject.get("tool", {}).get("hatch", {}).get("build", {})
    targets = [build, *build.get("targets", {}).values()]
    return [str(part) for part in targets if "hooks" in part]


def _version(name: str) -> str:
    return next(dist.project["version"] for dist in distributions() if dist.import_name == name)


def _entry_points(name: str, wheel: zipfile.ZipFile) -> dict[str, dict[str, str]]:
    path = f"{name}-{_version(name)}.dist-info/entry_points.txt"
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    if path in wheel.namelist():
        parser.read_string(wheel.read(path).decode())
    return {group: dict(parser[group]) for group in parser.sections()}
