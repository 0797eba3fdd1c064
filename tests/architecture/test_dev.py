"""`dev.py`: when it installs, which distributions it selects, and its error messages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from house import NOT_STANDARD, ROOT, distributions


@pytest.fixture
def dev() -> ModuleType:
    """`dev.py`, imported anew for each test."""
    spec = importlib.util.spec_from_file_location("dev_under_test", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the files that determine an installation, instead of the real one."""
    for dist in distributions():
        target = tmp_path / dist.folder.relative_to(ROOT)
        target.mkdir(parents=True)
        shutil.copy(dist.folder / "pyproject.toml", target)
    for name in ("pyproject.toml", "requirements.txt", dev.NO_DEPS, "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    venv = tmp_path / ".venv"
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "VENV", venv)
    monkeypatch.setattr(dev, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(dev, "STAMP", venv / "tenonry-installed")
    monkeypatch.setattr(dev, "PIP_LOG", venv / "pip.log")
    monkeypatch.setattr(dev, "LINKS", venv / "links")
    return tmp_path


@pytest.fixture
def pips(dev: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Arguments of pip, which is not run; environments are made of one file."""
    calls: list[tuple[str, ...]] = []

    def make_venv(folder: Path) -> None:
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin" / "python").touch()

    monkeypatch.setattr(dev, "make_venv", make_venv)
    monkeypatch.setattr(dev, "pip", lambda _python, *arguments, **_options: calls.append(arguments))
    monkeypatch.setattr(dev, "compile_installed", lambda *_package, **_options: None)
    monkeypatch.setattr(dev, "is_complete", lambda: False)
    # The contents follow from the project file, as those of real links do.
    monkeypatch.setattr(
        dev,
        "link",
        lambda wheels, folders: [
            shutil.copy(folder / "pyproject.toml", wheels / f"{folder.name}.whl")
            for folder in folders
        ],
    )
    return calls


def test_distributions_are_those_of_the_tree(dev: ModuleType):
    assert dev.distributions() == {dist.name: dist.folder for dist in distributions()}


def test_installs_once_the_build_backend_first_and_then_everything(dev: ModuleType, pips: list):
    dev.ensure_environment()
    dev.ensure_environment()
    assert pips[0] == ("hatchling", "editables")
    (siblings,) = [words for words in pips if "--force-reinstall" in words]
    assert siblings[0] == "--no-deps"
    assert len(siblings) == 2 + len(distributions())
    assert pips[-2] == ("--no-deps", "-r", str(dev.VENV / dev.NO_DEPS))
    assert pips[-1] == ("-r", str(dev.VENV / "requirements.txt"))
    assert len(pips) == 5 + dev.PARTS


def test_what_is_complete_with_pins_and_siblings_is_not_looked_at_by_pip_again(
    dev: ModuleType, pips: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "is_complete", lambda: True)
    dev.ensure_environment()
    assert {words[0] for words in pips[1:]} == {"--no-deps"}
    assert dev.installed() == dev.fingerprint()


@pytest.fixture
def lists(dev: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The two lists of requirements as `install` leaves them, both empty; nothing is pinned."""
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "pinned", list)
    found = [copy / ".venv" / name for name in (dev.NO_DEPS, "requirements.txt")]
    for file in found:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    return found


@pytest.mark.parametrize(
    ("line", "is_complete"),
    [
        ("", True),
        ("pytest>=8\ntenonry[standard] @ file:///of/any.whl\n# tests\n", True),
        ("pytest>=1000", False),
        ("no-such-distribution", False),
        ("tenonry[of-this-test]", True),  # pip takes an extra that is not there for an empty one
    ],
)
@pytest.mark.integration
def test_what_is_installed_is_complete_if_all_is_there(
    line: str, is_complete: bool, dev: ModuleType, lists: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "pinned", lambda: [f"pytest=={pytest.__version__}"])
    lists[1].write_text(line)
    assert dev.is_complete() == is_complete


@pytest.mark.integration
def test_another_version_than_the_pinned_one_is_not_complete(
    dev: ModuleType, lists: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "pinned", lambda: ["pytest==1.0"])
    assert not dev.is_complete()


@pytest.mark.integration
def test_what_a_requirement_or_its_extra_needs_is_looked_for(
    dev: ModuleType, lists: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of two distributions that are only metadata: one needs the other, and with an extra one that is not there."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    needs = 'Requires-Dist: second\nRequires-Dist: third; extra == "more"\n'
    for name, text in (("first", needs), ("second", "")):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{text}"
        )
    alone, whole = lists
    found = {}
    for line in ("first", "first[more]"):
        whole.write_text(line)
        found[line] = dev.is_complete()
    assert found == {"first": True, "first[more]": False}
    shutil.rmtree(tmp_path / "second-1.0.dist-info")
    whole.write_text("first")
    assert not dev.is_complete()
    whole.write_text("")
    alone.write_text("first>=1")
    assert dev.is_complete()
    alone.write_text("first>=2")
    assert not dev.is_complete()


def test_what_is_pinned_is_installed_first_torch_beside_the_rest(dev: ModuleType, pips: list):
    dev.ensure_environment()
    pins = [words for words in pips[1:-2] if "--force-reinstall" not in words]
    torch, *parts = sorted(pins, key=len)
    assert len(parts) == dev.PARTS
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert torch == ("--no-deps", pinned[0])
    assert pinned[0].startswith("torch==")
    assert {part[0] for part in parts} == {"--no-deps"}
    assert sorted(pin for part in parts for pin in part[1:]) == sorted(pinned[1:])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_pin_that_cannot_be_installed_is_left_to_the_installation_of_everything(
    dev: ModuleType, pips: list, monkeypatch: pytest.MonkeyPatch
):
    pip = dev.pip

    def failing(*arguments: str, **options: object) -> None:
        pip(*arguments, **options)
        if "--no-deps" in arguments and "-r" not in arguments:
            dev.stop("pip ended with status 1")

    monkeypatch.setattr(dev, "pip", failing)
    dev.ensure_environment()
    assert pips[-1][0] == "-r"
    assert dev.installed() == dev.fingerprint()


def test_siblings_are_installed_as_wheels_that_link_to_them(dev: ModuleType, pips: list):
    dev.ensure_environment()
    asked = [
        line
        for name in ("requirements.txt", dev.NO_DEPS)
        for line in (dev.VENV / name).read_text().splitlines()
    ]
    wheels = {
        line.split(" @ ")[0]: line.rpartition("/")[2].split("-")[0]
        for line in asked
        if " @ file:///" in line
    }
    assert wheels.pop("tenonry[standard]") == "tenonry"
    names = {dist.name for dist in distributions()} - {"tenonry"}
    assert wheels == {name: name.replace("-", "_") for name in names}
    assert not [line for line in asked if line.startswith("-e")]
    assert {"openai>=2", "ruff>=0.12"} <= set(asked)


def test_only_siblings_that_changed_are_installed_anew(dev: ModuleType, copy: Path, pips: list):
    dev.ensure_environment()
    with (copy / "schedulers" / "static" / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    dev.ensure_environment()
    changed = str(dev.VENV / "links.new" / "static.whl")
    assert pips[-3] == ("--no-deps", "--force-reinstall", changed)
    assert pips[-1] == ("-r", str(dev.VENV / "requirements.txt"))


def test_siblings_that_left_the_tree_are_uninstalled(
    dev: ModuleType, copy: Path, pips: list, monkeypatch: pytest.MonkeyPatch
):
    """Their entry points would claim names that another distribution has now."""
    removed: list[list[str]] = []
    monkeypatch.setattr(dev, "uninstall", removed.append)
    dev.ensure_environment()
    assert removed == []
    (dev.LINKS / "acme_former-0.1.0-py3-none-any.whl").touch()
    with (copy / "schedulers" / "static" / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    dev.ensure_environment()
    assert removed == [["acme_former"]]


@pytest.mark.integration
def test_a_link_holds_the_folder_and_what_the_distribution_declares(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    folders = [ROOT / "schedulers" / "static", ROOT / "schedulers" / "batching"]
    text, found = dev.with_links(
        "-e ./schedulers/static\n-e ./schedulers/batching[test]\n", tmp_path
    )
    assert found == folders
    dev.link(tmp_path, folders)
    for line, folder in zip(text.splitlines(), folders, strict=True):
        file = Path(line.partition(" @ file://")[2])
        with zipfile.ZipFile(file) as wheel:
            texts = {name: wheel.read(name).decode() for name in wheel.namelist()}
        assert str(folder / "src") in [
            content.strip() for name, content in texts.items() if name.endswith(".pth")
        ]
        (entry_points,) = [
            content for name, content in texts.items() if name.endswith("entry_points.txt")
        ]
        assert "[tenonry.schedulers]" in entry_points


@pytest.mark.integration
def test_a_distribution_that_cannot_be_built_is_shown(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "broken"\n')
    with pytest.raises(SystemExit, match=r"(?s)cannot be built.*version"):
        dev.link(tmp_path, [tmp_path])


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "requirements-no-deps.txt",
        "constraints.txt",
        "pyproject.toml",
        "core/pyproject.toml",
    ],
)
def test_installs_again_when_a_file_changed(name: str, dev: ModuleType, copy: Path, pips: list):
    dev.ensure_environment()
    first = len(pips)
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    dev.ensure_environment()
    # One more for what changed.
    assert len(pips) - first == (4 if name == "core/pyproject.toml" else 3)


def test_installs_again_when_the_last_installation_failed(
    dev: ModuleType, pips: list, monkeypatch: pytest.MonkeyPatch
):
    pip = dev.pip

    def failing(*arguments: object, **options: object) -> None:
        pip(*arguments, **options)
        dev.stop("pip ended with status 1")

    monkeypatch.setattr(dev, "pip", failing)
    with pytest.raises(SystemExit, match="status 1"):
        dev.ensure_environment()
    monkeypatch.setattr(dev, "pip", pip)
    dev.ensure_environment()
    assert pips[1] == pips[0]
    assert pips[-1] == ("-r", str(dev.VENV / "requirements.txt"))


@pytest.mark.integration
def test_what_was_installed_is_compiled_but_for_what_cannot_be(
    dev: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    package = copy / ".venv" / "lib" / "package"
    package.mkdir(parents=True)
    seldom = package.parent / "transformers" / "models"
    seldom.mkdir(parents=True)
    for name, text in (("one.py", "value = 1"), ("template.py", "{{ class }}")):
        (package / name).write_text(text)
    (seldom / "two.py").write_text("value = 2")
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    dev.compile_installed()
    assert [file.name.split(".")[0] for file in package.parent.rglob("*.pyc")] == ["one"]
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.integration
def test_one_package_is_compiled_alone(
    dev: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch
):
    packages = copy / ".venv" / "lib" / "python3" / "site-packages"
    for name in ("one", "two"):
        (packages / name).mkdir(parents=True)
        (packages / name / "module.py").write_text("value = 1")
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    dev.compile_installed("two", jobs=1)
    assert [file.parent.parent.name for file in packages.rglob("*.pyc")] == ["two"]
    dev.compile_installed("three", jobs=1)  # which could not be installed
    assert len(list(packages.rglob("*.pyc"))) == 1


NOISE = [
    "Looking in indexes: https://example.invalid",
    *[f"Collecting package-{n}" for n in range(200)],
    "  Downloading package-1.whl (3 kB)",
    "",
]
ERROR = "ERROR: No matching distribution found for package-1"


@pytest.fixture
def talking_python(copy: Path, dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip with much output; it fails on requirements if the file `fail` exists."""
    output = copy / "output"
    output.write_text("\n".join(NOISE))

    def make_venv(folder: Path) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(
            f'#!/bin/sh\ncat "{output}"\n[ -e "{copy}/fail" ] || exit 0\n'
            f'case "$*" in *requirements*) echo "{ERROR}"; exit 1;; esac\n'
        )
        python.chmod(0o755)

    monkeypatch.setattr(dev, "make_venv", make_venv)
    return copy


def without_times(text: str) -> list[str]:
    return [re.sub(r"\d+ s$", "N s", line) for line in text.splitlines()]


@pytest.mark.integration
class TestFirstRun:
    def test_shows_one_line_per_phase(self, dev, talking_python, capfd):
        dev.ensure_environment()
        shown = capfd.readouterr()
        assert shown.out == ""
        lines = without_times(shown.err)
        assert lines[0] == "dev.py: making .venv … N s"
        assert lines[1] == "dev.py: installing the build backend … N s"
        assert re.fullmatch(r"dev.py: installing torch and \d+ packages, .* … N s", lines[2])
        assert len(lines) == 3

    def test_keeps_what_pip_printed_in_a_file(self, dev, talking_python):
        dev.ensure_environment()
        # The build backend, torch, and other pins; this Python reports all as installed.
        log = (talking_python / ".venv" / "pip.log").read_text()
        assert log.count("package-199") == 2 + dev.PARTS

    def test_names_that_file_and_shows_the_lines_that_matter_when_pip_fails(
        self, dev, talking_python, capfd
    ):
        (talking_python / "fail").touch()
        with pytest.raises(SystemExit) as stopped:
            dev.ensure_environment()
        text = str(stopped.value)
        assert str(talking_python / ".venv" / "pip.log") in text
        assert text.splitlines()[1:] == [f"  {ERROR}"]
        assert without_times(capfd.readouterr().err)[-1].endswith("… failed after N s")

    def test_says_so_when_it_only_brings_up_to_date(self, dev, talking_python, capfd):
        dev.ensure_environment()
        (talking_python / "requirements.txt").write_text("# changed\n")
        capfd.readouterr()
        dev.ensure_environment()
        assert without_times(capfd.readouterr().err) == [
            "dev.py: installing the build backend … N s",
            "dev.py: bringing .venv up to date … N s",
        ]


@pytest.mark.integration
def test_isolated_environment_that_cannot_be_made_fails_alone_and_leaves_its_log(
    dev, copy, monkeypatch, capfd
):
    def make_venv(folder: Path) -> None:
        python = folder / "bin" / "python"
        python.parent.mkdir(parents=True)
        status = int("static" in folder.name)
        python.write_text(f'#!/bin/sh\necho "{ERROR}"\nexit {status}\n')
        python.chmod(0o755)

    monkeypatch.setattr(dev, "make_venv", make_venv)
    log = copy / ".isolated" / "tenonry-scheduler-static.log"
    assert dev.main(["test", "--isolated", "schedulers/static", "schedulers/kvcache"]) == 1
    lines = without_times(capfd.readouterr().err)
    assert any(str(log) in line for line in lines)
    assert "dev.py: isolated tenonry-scheduler-static: FAILED (1), N s" in lines
    assert "dev.py: isolated tenonry-kvcache: ok, N s" in lines
    assert ERROR in log.read_text()
    assert list(log.parent.iterdir()) == [log]


def test_moved_tree_installs_again(dev: ModuleType, copy: Path, monkeypatch: pytest.MonkeyPatch):
    before = dev.fingerprint()
    moved = copy.parent / "moved"
    shutil.copytree(copy, moved)
    monkeypatch.setattr(dev, "ROOT", moved)
    assert dev.fingerprint() != before


def test_closure_holds_declared_siblings_and_theirs(dev: ModuleType):
    assert set(dev.closure({"tenonry-scheduler-batching": {"test"}})) >= {
        "tenonry",
        "tenonry-kvcache",
        "tenonry-scheduler-batching",
    }
    assert "tenonry-worker-torch" not in dev.closure({"tenonry-scheduler-batching": {"test"}})


def test_closure_follows_extras(dev: ModuleType):
    assert dev.closure({"tenonry": set()}) == {"tenonry": set()}
    names = {dist.name for dist in distributions()} - NOT_STANDARD
    assert set(dev.closure({"tenonry": {"standard"}})) == names


def test_isolated_environment_holds_kernel_testkit_and_what_is_declared(
    dev: ModuleType, copy: Path, pips: list, monkeypatch: pytest.MonkeyPatch
):
    commands = []

    def run(command: list[str], **_options: object) -> subprocess.CompletedProcess:
        commands.append(command)
        return subprocess.CompletedProcess(command, 5)

    folder = copy / "schedulers" / "thing"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "tenonry-thing"\ndependencies = ["tenonry>=0.1", "tenonry-kvcache>=0.1", "numpy"]\n'
        '[project.optional-dependencies]\ntest = ["tenonry-demo-model>=0.1", "packaging"]\n'
        'fast = ["tenonry-worker-torch"]\n'
    )
    monkeypatch.setattr(dev.subprocess, "run", run)
    assert dev.main(["test", "--isolated", "schedulers/thing"]) == 1
    backend, everything = pips
    assert backend == ("hatchling", "editables")
    assert sorted(everything) == [
        "--no-build-isolation",
        "./core",
        "./plugins/demo-model",
        "./plugins/drafters",
        "./plugins/grammars",
        "./plugins/helper-pool",
        "./plugins/output-parsers",
        "./plugins/scale-out",
        "./schedulers/kvcache",
        "./schedulers/scheduling",
        "./schedulers/thing",
        "./tests/testkit",
        "packaging",
        "pytest-timeout",
    ]
    assert commands[0][-1] == str(folder / "tests")
    assert not (copy / ".isolated" / "tenonry-thing").exists()


def test_what_comes_without_dependencies_does_so_in_an_isolated_environment(dev: ModuleType):
    """Its other requirements come with theirs."""
    assert dev.without_dependencies() == {"tenonry-grammar-xgrammar", "xgrammar", "apache-tvm-ffi"}
    paths, bare = dev.isolated_requirements("tenonry-grammar-xgrammar")
    assert {dev.required(line)[0] for line in bare} == {
        "./plugins/grammar-xgrammar",
        "xgrammar",
        "apache-tvm-ffi",
    }
    assert {"./plugins/grammars", "./tests/testkit", "torch>=2.9"} <= set(paths)
    assert not [line for line in paths if "xgrammar" in line]
    assert dev.isolated_requirements("tenonry-grammars")[1] == []


@pytest.mark.parametrize(
    ("other_status", "ray_status", "status"), [(0, 0, 0), (1, 0, 1), (0, -9, 1)]
)
@pytest.mark.integration
def test_all_tests_run_and_each_failure_counts(
    other_status, ray_status, status, dev, tmp_path, monkeypatch, capfd
):
    """Ray's are alone in a process, which it may end; their output comes last."""
    end = "exit 0" if not ray_status else "kill -9 $$"
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@"\nnice >> {tmp_path}/nice\n'
        f'case "$*" in *"-n "*) exit {other_status};; esac\n{end}\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(dev, "PYTHON", python)
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    assert dev.test([]) == status
    printed = capfd.readouterr().out.splitlines()
    assert [line.split()[:6] for line in printed] == 2 * [
        ["-m", "pytest", "-q", "-m", "not", "nightly"]
    ]
    lowered = min(19, os.getpriority(os.PRIO_PROCESS, 0) + dev.NICENESS)
    assert {int(line) for line in (tmp_path / "nice").read_text().split()} == {lowered}
    for path in dev.ALONE:
        assert (ROOT / path).exists()
        assert f"--deselect={path}" in printed[0].split()
        assert path in printed[1].split()


@pytest.mark.integration
def test_what_takes_minutes_runs_too_with_all(dev, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(dev, "PYTHON", python)
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    assert dev.test(["--all"]) == 0
    printed = capfd.readouterr().out
    assert printed.count("pytest -q -o") == 2
    assert "nightly" not in printed


def test_the_tier_unit_is_one_run_of_the_folders_that_have_it(dev, monkeypatch):
    ran = []
    monkeypatch.setattr(dev, "become", lambda *words, env: ran.append(words) or sys.exit(0))
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    monkeypatch.chdir(ROOT)
    for more in ([], ["core/tests", "-x"]):
        with pytest.raises(SystemExit):
            dev.test(["--unit", *more])
    (_, *words), (_, *named) = ran
    unit = ["-m", "pytest", "-q", "-m", dev.UNIT, dev.UNIT_EFFORT]
    assert words[:6] == unit
    assert named == [*unit, "core/tests", "-x"]
    folders = [word for word in words if word.endswith(("tests", "architecture"))]
    assert {"core/tests", "plugins/recovery/tests", "tests/architecture"} <= set(folders)
    assert not [folder for folder in folders if not (ROOT / folder).is_dir()]


@pytest.fixture
def three_runs(dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with three tests, each of which passes in its nth run, for the n in its file."""
    text = """
import pathlib, pytest
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_nth_run(name):
    file = pathlib.Path(name)
    left = int(file.read_text()) - 1
    file.write_text(str(left))
    assert left <= 0
"""
    (tmp_path / "test_nth.py").write_text(text)
    (tmp_path / "test_ray.py").write_text("def test_ray(): pass")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "ALONE", ("test_ray.py",))
    monkeypatch.setattr(dev, "TESTERS", 1)
    monkeypatch.setattr(dev, "HEAD_START_S", 0)
    monkeypatch.setattr(dev, "PYTHON", sys.executable)
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("passing_runs", "status", "left"),
    [
        ((1, 1, 1), 0, [0, 0, 0]),
        ((1, 2, 2), 0, [0, 0, 0]),  # two failed: each is run once more, the third is not
        ((1, 1, 3), 1, [0, 0, 1]),
        ((2, 2, 2), 1, [1, 1, 1]),  # more than two: nothing is
    ],
)
@pytest.mark.integration
def test_a_few_that_failed_are_run_once_more_and_races_named(
    passing_runs, status, left, dev, three_runs, capfd
):
    for name, runs in zip("abc", passing_runs, strict=True):
        (three_runs / name).write_text(str(runs))
    assert dev.test([]) == status
    assert [int((three_runs / name).read_text()) for name in "abc"] == left
    races = ", ".join(f"test_nth.py::test_nth_run[{name}]" for name in "bc")
    is_named = f"UNSTABLE: {races} passed alone: a race" in capfd.readouterr().err
    assert is_named == (passing_runs == (1, 2, 2))


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.integration
def test_one_tester_goes_ahead_in_a_new_clone(is_new, dev, tmp_path, monkeypatch, capfd):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$1 ahead: $TESTERS_HEAD_START_S"\n')
    python.chmod(0o755)
    if not is_new:
        compiled = tmp_path / dev.LAST_COMPILED.replace("*", "pyc")
        compiled.parent.mkdir(parents=True)
        compiled.touch()
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "PYTHON", python)
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    monkeypatch.delenv(
        "TESTERS_HEAD_START_S", raising=False
    )  # in a new clone this test has it, too
    monkeypatch.chdir(tmp_path)
    dev.test([])
    ahead = f"-m ahead: {dev.HEAD_START_S if is_new else ''}"
    assert capfd.readouterr().out.splitlines() == [ahead, "-m ahead: "]
    assert list((ROOT / dev.LAST_COMPILED).parent.parent.glob("test_size.py"))


@pytest.mark.parametrize(
    "word", ["schedulers/static", "./schedulers/static/", "tenonry-scheduler-static"]
)
def test_distribution_is_chosen_by_folder_or_name(word: str, dev: ModuleType):
    assert dev.choose([word]) == ["tenonry-scheduler-static"]


def test_unknown_distribution_is_refused_with_the_known_ones(dev: ModuleType):
    with pytest.raises(
        SystemExit, match=r"(?s)no distribution 'schedulers/fast'.*schedulers/static"
    ):
        dev.choose(["schedulers/fast"])


def test_unsupported_python_is_refused_by_name(dev: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(dev.shutil, "which", lambda _name: None)
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 to 3\.14; this is 3\.10"):
        dev.need_python()


@pytest.mark.integration
def test_unsupported_python_hands_over_to_one_that_starts(
    dev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The PATH may have a launcher for a Python that is not installed (pyenv's do)."""
    for name, status in (("python3.13", 127), ("python3.12", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    calls = []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", (3, 15, 0))
    monkeypatch.setattr(
        dev.os, "execv", lambda path, arguments: calls.append((path, arguments)) or sys.exit(0)
    )
    with pytest.raises(SystemExit):
        dev.need_python()
    [(path, arguments)] = calls
    assert path == str(tmp_path / "python3.12")
    assert arguments[1] == str(ROOT / "dev.py")


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0), (["bild"], 1)])
@pytest.mark.integration
def test_usage_is_printed(arguments: list[str], status: int):
    done = subprocess.run(
        [sys.executable, ROOT / "dev.py", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert (
        "run, test, check, bench" in done.stderr
        if status == 1
        else "dev.py test --isolated" in done.stdout
    )


def test_unknown_check_is_refused_with_the_known_ones(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(dev, "ensure_environment", lambda: None)
    with pytest.raises(
        SystemExit, match="no check 'pylint'; there are: ruff, format, mypy, layers, declared"
    ):
        dev.check(["pylint"])
