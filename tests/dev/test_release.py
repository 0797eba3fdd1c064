"""Release files: complete, of one version, unchanged; and an installation from them alone answers a request."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from house import distributions

from dev import paths, release, sbom
from tenonry_testkit.processes import free_port

VERSION = distributions()[0].project["version"]
ANSWERED = re.compile(r'"text":\s*"[^"]*\w')
START_S = 300


def plant(folder: Path, *, left_out: str = "", version: str = VERSION) -> Path:
    """Write the least that `check` reads of each distribution's files, with `version` for the kernel."""
    folder.mkdir()
    for dist in distributions():
        if dist.name != left_out:
            own = version if dist.name == "tenonry" else VERSION
            stem = f"{dist.import_name}-{own}"
            with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{stem}.dist-info/METADATA", f"Name: {dist.name}\nVersion: {own}\n")
            (folder / f"{stem}.tar.gz").write_bytes(b"sdist")
    release.write_sums(folder)
    return folder


def test_a_complete_folder_passes(tmp_path: Path):
    assert release.check(plant(tmp_path / "files")) == 0


@pytest.mark.parametrize(
    ("planted", "fault"),
    [
        ({"left_out": "tenonry-routes"}, "no wheel of tenonry-routes"),
        ({"left_out": "tenonry-routes"}, "no sdist of tenonry-routes"),
        ({"version": "9.9.9"}, f"tenonry has version 9.9.9; the tree has {VERSION}"),
    ],
)
def test_a_fault_is_named_with_the_remedy(tmp_path: Path, planted: dict[str, str], fault: str):
    folder = plant(tmp_path / "files", **planted)
    with pytest.raises(SystemExit, match=rf"{fault}[\s\S]*python3 dev\.py release --out"):
        release.check(folder)


def test_changed_added_and_removed_files_are_named(tmp_path: Path):
    folder = plant(tmp_path / "files")
    wheel, *_, sdist = sorted(folder.glob("tenonry_[rs]*"))
    wheel.with_name("more.txt").touch()
    sdist.write_bytes(b"other")
    faults = "\n".join(release.changed(folder))
    assert f"{sdist.name} does not have the checksum" in faults
    assert "more.txt is not in SHA256SUMS" in faults
    sdist.unlink()
    assert f"no {sdist.name}, which SHA256SUMS has" in release.changed(folder)


@pytest.mark.parametrize(
    ("words", "error"),
    [(["--tag", "v9.9.9"], "does not match version"), (["--out"], "usage"), (["now"], "usage")],
)
def test_wrong_arguments_are_refused_before_a_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], error: str
):
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "t"\nversion = "{VERSION}"\n')
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match=error):
        release.release(words)


def test_a_folder_with_files_is_refused(tmp_path: Path):
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="is not empty; remove its files or name another"):
        release.release(["--out", str(tmp_path)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Release files of the last commit."""
    out = tmp_path_factory.mktemp("release") / "files"
    assert release.release(["--out", str(out)]) == 0
    return out


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_wheels_carry_licence_readme_and_supported_pythons(files: Path):
    for file in files.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            [name] = [each for each in wheel.namelist() if each.endswith("METADATA")]
            fields = HeaderParser().parsestr(wheel.read(name).decode())
            assert any(each.endswith("licenses/LICENSE") for each in wheel.namelist()), file.name
        classifiers = fields.get_all("Classifier") or []
        supported = [f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)]
        assert {*supported} <= {*classifiers}, f"{file.name}: copy `classifiers` of core/"
        assert fields["License-Expression"] == "Apache-2.0", file.name
        assert fields["Description-Content-Type"] == "text/markdown", file.name
        assert not fields.get_all("Project-URL"), file.name  # there is no host yet


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_bill_names_our_files_and_what_they_require(files: Path):
    bill = json.loads((files / sbom.FILE).read_text())
    parts = {part["name"]: part for part in bill["components"]}
    assert {dist.name for dist in distributions()} <= set(parts)
    assert parts["torch"]["licenses"]
    named = {file["name"] for part in parts.values() for file in part.get("components", ())}
    assert named == {file.name for file in files.iterdir()} - {sbom.FILE, release.SUMS}
    known = {part["bom-ref"] for part in bill["components"]}
    assert all({*entry["dependsOn"]} <= known for entry in bill["dependencies"])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_installation_from_the_files_alone_answers(files: Path, tmp_path: Path):
    """pip resolves `tenonry[standard]` from the folder; packages of others come from this environment."""
    python = environment_with_third_parties(tmp_path)
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    command += ["--no-index", "--find-links", files, "tenonry[standard]"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    env = {**os.environ, "PYTHONPATH": "", "TENONRY_NO_USAGE": "1"}
    port = free_port()
    served = subprocess.Popen(
        [python.parent / "tenonry", "serve", "demo", "--port", str(port)], cwd=tmp_path, env=env
    )
    try:
        wait_until_ready(served, port)
        body = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert ANSWERED.search(answer.read().decode())
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) == 0
    finally:
        served.kill()
        served.wait()


def environment_with_third_parties(folder: Path) -> Path:
    """Make an environment that has every installed package but ours; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    others = folder / "others"
    others.mkdir()
    installed = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for entry in installed.iterdir():
        if "tenonry" not in entry.name and entry.suffix != ".pth":
            (others / entry.name).symlink_to(entry)
    [own] = (folder / "venv").glob("lib/python*/site-packages")
    (own / "others.pth").write_text(f"{others}\n")
    return folder / "venv" / "bin" / "python"


def wait_until_ready(served: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server takes requests; `/ready` is asked until then."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and served.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server was not ready after {START_S} s; exit status {served.poll()}")
