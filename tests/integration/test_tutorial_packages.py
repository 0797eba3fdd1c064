"""The package of a tutorial is the scaffold with the files of its page. It installs, and its tests and check pass."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from page_reader import ALL_PAGES, BLOCK, ROOT

from tenonry.cli import main
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry_commands.plugins import points
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.tiers import nightly_unless

PACKAGES = [
    file.parent
    for file in sorted((ROOT / "docs" / "tutorial" / "packages").glob("*/pyproject.toml"))
]
NAMES = [package.name for package in PACKAGES]
# Their tests take half a minute, or load torch.
SLOW = {
    "chunked-layers", "hidden-peaks", "house-model", "packed-requests", "short-first", "short-prompts", "six-bits",
    "stale-inputs", "torch-kernels", "wind-down",
}  # fmt: skip
KINDS = {point.group: point.kind for point in points()}
OF_ITS_OWN = "README.md"  # written for users
CACHES = {"__pycache__", ".hypothesis", ".pytest_cache"}
OPTIONS = "-q --no-build-isolation --no-deps --no-index --no-compile --disable-pip-version-check"


def project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]


def plugin(package: Path) -> tuple[str, str]:
    """Kind and name of a package's plugin."""
    group, entries = next(iter(project(package)["entry-points"].items()))
    return KINDS[group], next(iter(entries))


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file() and not CACHES.intersection(path.parts) and path.name != OF_ITS_OWN
    }


def page_files(name: str) -> dict[str, str]:
    """Files of a package that a page contains: blocks that begin with "# NAME/PATH"."""
    blocks = [text for page in ALL_PAGES for _, text in BLOCK.findall(page.read_text("utf-8"))]
    heads = [(text.partition("\n"), f"# {name}/") for text in blocks]
    return {
        head.removeprefix(start): text for (head, _, text), start in heads if head.startswith(start)
    }


@pytest.mark.parametrize("package", PACKAGES, ids=NAMES)
def test_package_is_the_scaffold_with_the_files_of_its_page(package, tmp_path):
    made = tmp_path / package.name
    kind, name = plugin(package)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plugins", "new", kind, name, "--into", str(made)]) == 0
    summaries = [project(folder)["description"] for folder in (made, package)]
    scaffold = {path: text.replace(*summaries) for path, text in files(made).items()}
    of_page = page_files(package.name)
    assert any(path.endswith("plugin.py") for path in of_page)
    assert files(package) == scaffold | of_page


class Installed(NamedTuple):
    """`sources`: copies, in which the settings of this repository's tests have no effect. `environment`: of processes
    that see all packages installed.
    """

    sources: dict[str, Path]
    environment: dict[str, str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("packages")
    sources = {package.name: folder / package.name for package in PACKAGES}
    for package in PACKAGES:
        ignored = shutil.ignore_patterns(*CACHES)
        shutil.copytree(package, sources[package.name], ignore=ignored)
    site = folder / "site"
    command = [sys.executable, "-m", "pip", "install", *OPTIONS.split(), "--target", str(site)]
    subprocess.run([*command, *map(str, sources.values())], check=True)
    # Every installed observer runs, and that of an alpha point needs consent.
    consent = {EXPERIMENTAL: "1"}
    environment = {"PYTHONPATH": str(site), "TENONRY_TESTKIT_EFFORT": "0.1"} | consent
    return Installed(sources, {**os.environ, **environment})


def run(*words: str | Path, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    return done.stdout


def test_installed_plugins_are_found(installed):
    command = ("tenonry", "plugins", "list", "--json")
    rows = json.loads(run(*command, environment=installed.environment))
    found = {(row["kind"], row["name"]): row["distribution"] for row in rows}
    for package in PACKAGES:
        assert found[plugin(package)] == package.name


@pytest.mark.timeout(300)
def test_tests_of_installed_packages_pass(installed, tmp_path):
    settings = tmp_path / "none.ini"
    settings.write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "-c", settings, "--import-mode=importlib"]
    tests = [source / "tests" for name, source in installed.sources.items() if name not in SLOW]
    run("pytest", *options, *tests, environment=installed.environment)


@pytest.mark.parametrize(
    "package", nightly_unless(lambda package: package.name not in SLOW, PACKAGES), ids=NAMES
)
def test_check_finds_nothing(package, capsys, no_outside_settings):
    assert main(["plugins", "check", str(package), "--no-suite"]) == 0
    assert "\ngrade C: no errors; tests were not run\n" in capsys.readouterr().out


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_grade_is_a(name, installed):
    words = ("tenonry", "plugins", "check", installed.sources[name])
    output = run(*words, environment=installed.environment)
    assert output.endswith("\ngrade A: no findings, tests included\n"), output


def test_scheduler_passes_its_suite():
    """With a fraction of the examples; all of them are nightly."""

    class Suite(SchedulerContract):
        package = PACKAGES[NAMES.index("short-prompts")]
        scheduler = f"{package}/src/short_prompts/plugin.py:ShortPrompts"
        effort = 0.05

    assert list(failing_tests(Suite)) == []
