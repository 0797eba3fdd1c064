"""Every folder with a pyproject.toml is a distribution of one shape, at one version, known to the tools."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest
from house import NOT_STANDARD, ROOT, Distribution, distributions

DISTS = distributions()
NAMES = {dist.name for dist in DISTS}
LIBRARIES = {
    "tenonry_commands",
    "tenonry_drafters",
    "tenonry_scale_out",
    "tenonry_grammars",
    "tenonry_helper_pool",
    "tenonry_hf_hub",
    "tenonry_images",
    "tenonry_kvcache",
    "tenonry_output_parsers",
    "tenonry_scheduling",
}
TORCH_LIBRARIES = {"tenonry_torch_base"}
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = WORKSPACE["project"]["version"]
MAJOR, MINOR = (int(part) for part in VERSION.split(".")[:2])
SIBLING_RANGE = f">={MAJOR}.{MINOR},<{MAJOR}.{MINOR + 1}"

each = pytest.mark.parametrize("dist", DISTS, ids=lambda dist: dist.name)


@each
def test_version_is_the_one_version(dist: Distribution):
    assert dist.project["version"] == VERSION


@each
def test_siblings_are_required_in_one_range(dist: Distribution):
    lines = list(dist.project["dependencies"])
    lines += [
        line for more in dist.project.get("optional-dependencies", {}).values() for line in more
    ]
    for line in lines:
        name, extras, rest = re.match(r"([\w.-]+)(\[[^]]*\])?(.*)", line).groups()
        if name in NAMES:
            assert rest == SIBLING_RANGE, f"{line}{extras or ''}"
        assert not name.startswith("tenonry") or name in NAMES


@each
def test_metadata_has_the_common_shape(dist: Distribution):
    assert dist.pyproject["build-system"]["build-backend"] == "hatchling.build"
    assert dist.project["license"] == "Apache-2.0"
    assert dist.project["requires-python"] == WORKSPACE["project"]["requires-python"]
    assert dist.project["readme"] == "README.md"
    assert dist.project["description"]
    if dist.name != "tenonry":
        assert f"tenonry{SIBLING_RANGE}" in dist.project["dependencies"]


@each
def test_folder_has_a_typed_package_of_the_flat_name(dist: Distribution):
    assert (dist.package / "__init__.py").is_file()
    assert (dist.package / "py.typed").is_file()
    packages = [
        path.name for path in (dist.folder / "src").iterdir() if (path / "__init__.py").is_file()
    ]
    assert packages == [dist.import_name]


@each
def test_folder_has_tests(dist: Distribution):
    assert list((dist.folder / "tests").rglob("test_*.py"))


@each
def test_readme_says_what_it_is_and_names_what_it_provides(dist: Distribution):
    text = (dist.folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {dist.name}\n")
    assert len(text.split()) >= 30
    for group, name in dist.entry_points:
        inner = group in {"pytest11", "tenonry.settings"}
        word = re.escape(name.lstrip("-"))  # of commands that are flags
        assert inner or re.search(rf"\b{word}\b", text), f"{group}: {name}"


@each
def test_installed_metadata_is_that_of_the_tree(dist: Distribution):
    installed = importlib.metadata.distribution(dist.name)
    groups = {(point.group, point.name): point.value for point in installed.entry_points}
    scripts = {
        ("console_scripts", name): value for name, value in dist.project.get("scripts", {}).items()
    }
    assert installed.version == VERSION, "run python3 dev.py test: the environment is out of date"
    assert groups == {**dist.entry_points, **scripts}


@each
def test_tools_know_it(dist: Distribution):
    files = (ROOT / "requirements.txt", ROOT / "requirements-no-deps.txt")
    requirements = "".join(file.read_text(encoding="utf-8") for file in files)
    folder = re.escape(str(dist.folder.relative_to(ROOT)))
    assert re.search(rf"^-e \./{folder}(\[[\w,]+\])?$", requirements, re.MULTILINE)
    assert dist.import_name in WORKSPACE["tool"]["importlinter"]["root_packages"]


def test_contracts_name_every_distribution():
    contracts = {
        contract["name"]: contract for contract in WORKSPACE["tool"]["importlinter"]["contracts"]
    }
    plugins = {dist.import_name for dist in DISTS} - {"tenonry"}
    libraries = LIBRARIES | TORCH_LIBRARIES
    assert set(contracts["Libraries know the kernel only"]["source_modules"]) == LIBRARIES
    on_torch = contracts[
        "The library of workers on torch knows the kernel, torch and transformers only"
    ]
    assert set(on_torch["source_modules"]) == TORCH_LIBRARIES
    assert set(on_torch["forbidden_modules"]) == plugins - libraries
    kernel = contracts["The kernel knows no plugin, no torch and no transformers"]
    assert set(kernel["forbidden_modules"]) == plugins | {"torch", "transformers"}
    assert (
        set(contracts["Plugins know the kernel and libraries, never each other"]["modules"])
        == plugins - libraries
    )
    known_to_libraries = contracts["Libraries know the kernel only"]
    assert set(known_to_libraries["forbidden_modules"]) == (plugins - libraries) | {
        "torch",
        "transformers",
    }


def test_the_extra_standard_names_every_plugin_that_is_not_large():
    core = next(dist for dist in DISTS if dist.name == "tenonry")
    standard = core.project["optional-dependencies"]["standard"]
    assert sorted(standard) == sorted(
        f"{name}{SIBLING_RANGE}" for name in NAMES - {"tenonry", *NOT_STANDARD}
    )


def test_version_is_in_the_changelog_and_in_the_kernel():
    import tenonry

    assert re.search(
        rf"^## {re.escape(VERSION)}\b",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert tenonry.__version__ == VERSION


def test_torch_is_pinned_once():
    pins = [
        (file.name, line)
        for file in (ROOT / "constraints.txt", ROOT / "requirements.txt")
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.match(r"torch\b", line)
    ]
    assert pins == [("constraints.txt", "torch==2.13.0")]
    for dist in DISTS:
        assert not [line for line in dist.project["dependencies"] if re.match(r"torch\s*==", line)]
