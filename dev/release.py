"""Release files: a wheel and an sdist of every distribution, their checksums and a bill of materials."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from dev import environment, paths, programs, sbom
from dev.console import phase, say, stop
from dev.tree import distributions, metadata

SUMS = "SHA256SUMS"
USAGE = "python3 dev.py release [--out FOLDER] [--tag vVERSION], or: release --check FOLDER"
# Wheels are built from the unpacked sdists: a file that an sdist lacks is missed here.
BUILD = """
import os, sys, tarfile, tempfile
from hatchling.build import build_sdist, build_wheel
out, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    sdist = build_sdist(out)
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(os.path.join(out, sdist)) as archive:
            archive.extractall(unpacked, filter="data")
        os.chdir(os.path.join(unpacked, sdist.removesuffix(".tar.gz")))
        build_wheel(out)
        os.chdir(out)
"""


def release(words: list[str]) -> int:
    """Build all release files of a commit into a folder, or check a folder of them."""
    match words:
        case ["--check", folder]:
            return check(Path(folder))
        case [] | ["--out", _] | ["--tag", _] | ["--out", _, "--tag", _] | ["--tag", _, "--out", _]:
            options = dict(zip(words[::2], words[1::2], strict=True))
        case _:
            stop(f"usage: {USAGE}")
    out = Path(options.get("--out", paths.ROOT / "dist")).resolve()
    if out.exists() and any(out.iterdir()):
        stop(f"{out} is not empty; remove its files or name another folder with --out")
    tag = options.get("--tag", f"v{version()}")
    if tag != f"v{version()}":
        stop(f"--tag {tag} does not match version {version()}; type --tag v{version()}")
    environment.ensure_environment()
    out.mkdir(parents=True, exist_ok=True)
    # As a commit: HEAD may move during the build.
    revision = git("rev-parse", options.get("--tag", "HEAD")).decode().strip()
    build(revision, out)
    sbom.write(out, version(), commit_time(revision))
    write_sums(out)
    return check(out)


def version() -> str:
    """Return the one version of this tree."""
    return str(metadata(paths.ROOT)["version"])


def git(*words: str) -> bytes:
    """Return the output of a git command in this tree; stop if it fails."""
    done = subprocess.run(["git", *words], cwd=paths.ROOT, capture_output=True, check=False)
    if done.returncode:
        stop(f"git {' '.join(words)}: {done.stderr.decode().strip()}")
    return done.stdout


def commit_time(revision: str) -> int:
    """Return the commit's time in seconds since 1970; all files carry it, so that builds are reproducible."""
    return int(git("log", "-1", "--format=%ct", revision))


def build(revision: str, out: Path) -> None:
    """Build every distribution of `revision`; each gets the licence, which stands once in the tree."""
    if git("status", "--porcelain"):
        say(f"uncommitted changes are left out: the files are built from {revision}")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        archive = tree / "tree.tar"
        archive.write_bytes(git("archive", revision))
        with tarfile.open(archive) as opened:
            opened.extractall(tree, filter="data")
        folders = [tree / path.relative_to(paths.ROOT) for path in distributions().values()]
        for each in folders:
            if not each.is_dir():
                stop(f"{each.relative_to(tree)} is not in {revision}; commit it first")
            shutil.copy(tree / "LICENSE", each)
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_time(revision))}
        command = [str(paths.PYTHON), "-c", BUILD, str(out), *map(str, folders)]
        with phase(f"building {len(folders)} distributions"):
            done = subprocess.run(
                command, env=env, capture_output=True, encoding="utf-8", check=False
            )
        sys.stderr.write(done.stderr if not done.returncode else "")
        if done.returncode:
            stop("a build failed:\n" + programs.relevant(done.stdout + done.stderr))


def write_sums(out: Path) -> None:
    """Write SHA256SUMS as `sha256sum --check` reads it."""
    lines = [f"{digest(file)}  {file.name}\n" for file in sorted(out.iterdir())]
    (out / SUMS).write_text("".join(lines), encoding="utf-8")


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def check(out: Path) -> int:
    """Compare a folder with the tree; stop with one sentence per fault if a file is missing or differs."""
    faults = [*missing(out), *changed(out)]
    if faults:
        remedy = "build the folder again: python3 dev.py release --out FOLDER"
        stop("\n".join([*(f"{out}: {fault}" for fault in faults), remedy]))
    say(f"{out}: {len(distributions())} distributions of version {version()}, complete")
    return 0


def missing(out: Path) -> list[str]:
    """Return a sentence for each distribution without a wheel or sdist of this version."""
    faults = []
    for name in distributions():
        stem = name.replace("-", "_")
        wheels = sorted(out.glob(f"{stem}-*.whl"))
        wanted = [("wheel", wheels), ("sdist", sorted(out.glob(f"{stem}-*.tar.gz")))]
        faults += [f"no {kind} of {name}" for kind, files in wanted if not files]
        found = {wheel_version(file) for file in wheels}
        found |= {
            file.name[len(stem) + 1 : -len(".tar.gz")] for _, files in wanted[1:] for file in files
        }
        faults += [
            f"{name} has version {other}; the tree has {version()}"
            for other in sorted(found - {version()})
        ]
    return faults


def wheel_version(file: Path) -> str:
    """Return the version in a wheel's metadata."""
    with zipfile.ZipFile(file) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA"))
        return str(HeaderParser().parsestr(wheel.read(name).decode())["Version"])


def changed(out: Path) -> list[str]:
    """Return a sentence for each file that is not the one in SHA256SUMS."""
    if not (out / SUMS).exists():
        return [f"no {SUMS}"]
    lines = (out / SUMS).read_text(encoding="utf-8").splitlines()
    sums = {name: checksum for checksum, name in (line.split("  ", 1) for line in lines)}
    files = {file.name for file in out.iterdir()} - {SUMS}
    faults = [f"{name} is not in {SUMS}" for name in sorted(files - set(sums))]
    faults += [f"no {name}, which {SUMS} has" for name in sorted(set(sums) - files)]
    faults += [
        f"{name} does not have the checksum in {SUMS}"
        for name in sorted(files & set(sums))
        if digest(out / name) != sums[name]
    ]
    return faults
