#!/usr/bin/env python3
"""Set up this repository and work with it. Needs Python 3.11 to 3.14 and nothing else.

    python3 dev.py run [WORDS]                 tenonry WORDS; without words: serve the demo model
    python3 dev.py test [PYTEST ARGUMENTS]     tests of every change, some at a time, or those that the arguments choose
    python3 dev.py test --unit [ARGUMENTS]     the quick ones, which start no process: 2 to 3 minutes
    python3 dev.py test --all                  and those marked nightly, which take minutes each
    python3 dev.py test --isolated [DIST ...]  a distribution's tests with only what it declares installed
    python3 dev.py check [--fix] [NAME ...]    ruff, format, mypy, layers, declared: all of them, or by name
    python3 dev.py bench [WORDS]               tenonry bench WORDS; without words: the standard set
    python3 dev.py bench parity [WORDS]        every causal type of transformers served tiny, compared with generate

Everything lives in .venv, made on first use and brought up to date when requirements.txt, constraints.txt,
a pyproject.toml or a source to be compiled changed; pip's output goes to .venv/pip.log. DIST is a folder
(schedulers/static) or a name; without any, all distributions are tested, two at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "tenonry-installed"
PIP_LOG = VENV / "pip.log"
# In the environment first, so that no sibling needs a build of its own.
BACKEND = ("hatchling", "editables")
NO_DEPS = "requirements-no-deps.txt"  # beside requirements.txt: what is installed without what it requires
LINKS = VENV / "links"  # the wheels that were installed: links to the folders of the siblings
# Half of what is installed; the few of these modules that a process imports are compiled then.
SELDOM_IMPORTED = (
    r"/(tests|transformers/models|torch/(_inductor|testing)|ray/(rllib|data|serve|tune|train|llm|dashboard)"
    r"|sympy/physics|networkx|pygments/lexers|pip|setuptools|mypyc)/"
)
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
AT_A_TIME = 2  # environments of distributions: one per core
PARTS = 2  # of what is pinned beside torch; each pip waits for downloads, too
TESTERS = 2 * AT_A_TIME  # tests wait for processes, too, and leave a third of the cores' time idle
# In a clone that is new, one tester compiles the test files, and the others, which begin later, find them compiled.
HEAD_START_S = 7
LAST_COMPILED = "tests/architecture/__pycache__/test_size.*"
PRINTING = threading.Lock()
# Helper processes start with this priority, which gives them little of the time beside testers with a higher one.
NICENESS = 10
TRIED_AGAIN = 2  # tests, at most; more failures are no race
# The tier `unit` as an expression of pytest's `-m`, and the share of the contract suites' examples that it looks at.
UNIT = "not integration and not nightly and not slow"
UNIT_EFFORT = "--testkit-effort=0.2"
# In a process of their own: Ray may end a process whose cluster is lost.
ALONE = ("executors/ray/tests", "tests/integration/test_ray.py")
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14))
# Lines of pip that report progress; an error is among the others.
PROGRESS = re.compile(
    r"\s*(Requirement already|Looking in|Obtaining|Collecting|Using cached|Downloading|Preparing|Getting"
    r"|Checking|Building|Created|Stored|Installing|Attempting|Found existing|Uninstalling|Processing"
    r"|Link requires|\[notice\]|$)"
)
SHOWN_LINES = 12


def say(text: str, end: str = "\n") -> None:
    """Print for the person at the terminal; standard output belongs to the program that is run."""
    print(f"dev.py: {text}", end=end, file=sys.stderr, flush=True)


def stop(text: str) -> NoReturn:
    """End with a message and exit status 1."""
    sys.exit(f"dev.py: {text}")


@contextlib.contextmanager
def phase(text: str) -> Iterator[None]:
    """Print one line: what is being done, and, once it is done, how long it took."""
    say(f"{text} … ", end="")
    start = time.monotonic()
    result = "failed after "
    try:
        yield
        result = ""
    finally:
        print(f"{result}{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def need_python() -> None:
    """Continue under a Python that tenonry supports, or say which one is missing."""
    if sys.version_info[:2] in SUPPORTED:
        return
    others = [shutil.which(f"python{major}.{minor}") for major, minor in reversed(SUPPORTED)]
    for other in filter(None, others):
        probe = subprocess.run([other, "-c", ""], stderr=subprocess.DEVNULL, check=False)
        if probe.returncode == 0:  # else a launcher without its Python, as pyenv has them
            os.execv(other, [other, str(ROOT / "dev.py"), *sys.argv[1:]])
    stop(
        f"needs Python 3.11 to 3.14; this is {sys.version_info[0]}.{sys.version_info[1]} "
        f"({sys.executable}) and none of them is on the PATH. Install one and run: python3.13 dev.py"
    )


# ------------------------------------------------------------------------------------------------- the tree


def distributions() -> dict[str, Path]:
    """Name to folder of every distribution in this tree, in order of folders."""
    files = sorted([*ROOT.glob("core/pyproject.toml"), *ROOT.glob("[!.]*/*/pyproject.toml")])
    return {metadata(file.parent)["name"]: file.parent for file in files}


def metadata(folder: Path) -> dict[str, Any]:
    """Return the `[project]` table of the distribution in `folder`."""
    import tomllib  # not there before Python 3.11, where need_python() still has something to say

    return dict(tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def choose(words: list[str]) -> list[str]:
    """Return the names of the distributions that `words` mean, by folder or by name; all without words."""
    known = distributions()
    by_folder = {str(folder.relative_to(ROOT)): name for name, folder in known.items()}
    chosen = [by_folder.get(word.removeprefix("./").rstrip("/"), word) for word in words]
    for name in chosen:
        if name not in known:
            stop(f"no distribution {name!r}; there are:\n  " + "\n  ".join(by_folder))
    return chosen or list(known)


def closure(wanted: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the distributions of this tree that `wanted` (name to extras) needs, themselves included."""
    known = distributions()
    found: dict[str, set[str]] = {}
    pending = list(wanted.items())
    while pending:
        name, extras = pending.pop()
        if name not in known or (name in found and extras <= found[name]):
            continue
        project = metadata(known[name])
        optional = project.get("optional-dependencies", {})
        extras = extras.intersection(optional)
        found.setdefault(name, set()).update(extras)
        asked = [line for key in extras for line in optional.get(key, [])]
        for line in [*project["dependencies"], *asked]:
            requirement, more = required(line)
            pending.append((requirement, more))
    return found


def required(line: str) -> tuple[str, set[str]]:
    """Return the name and the extras in a requirement."""
    name, _, more = re.split(r"[;<>=!~@ ]", line)[0].partition("[")
    return name.lower(), set(re.findall(r"[\w.-]+", more))


def without_dependencies() -> set[str]:
    """Return the names in requirements-no-deps.txt."""
    text = (ROOT / NO_DEPS).read_text(encoding="utf-8")
    folders = re.findall(r"^-e \./(\S+)$", text, re.MULTILINE)
    others = re.findall(r"^\w.*$", text, re.MULTILINE)
    return {metadata(ROOT / folder)["name"] for folder in folders} | {
        required(line)[0] for line in others
    }


# ------------------------------------------------------------------------------------------ the environment


def fingerprint() -> str:
    """Hash all that an installation follows from, the place of the tree included (installs are editable)."""
    digest = hashlib.sha256(str(ROOT).encode())
    pyprojects = [folder / "pyproject.toml" for folder in distributions().values()]
    compiled = sorted([*ROOT.glob("*/*/hatch_build.py"), *ROOT.glob("*/*/native/*")])
    names = ("requirements.txt", NO_DEPS, "constraints.txt", "pyproject.toml")
    for file in [*(ROOT / name for name in names), *pyprojects, *compiled]:
        digest.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def installed() -> str:
    """Return the fingerprint of the last installation that ended well, or nothing."""
    return STAMP.read_text(encoding="utf-8") if STAMP.exists() and PYTHON.exists() else ""


def ensure_environment() -> None:
    """Make `.venv` and install into it, if what is installed is not what the tree asks for."""
    wanted = fingerprint()
    if installed() == wanted:
        return
    VENV.mkdir(exist_ok=True)
    with (VENV / ".lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another dev.py is installing; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if installed() == wanted:
            return
        first = not STAMP.exists()
        STAMP.unlink(missing_ok=True)
        PIP_LOG.unlink(missing_ok=True)
        if not PYTHON.exists():
            with phase("making .venv"):
                make_venv(VENV)
        with phase("installing the build backend"):
            pip(PYTHON, *BACKEND, log=PIP_LOG)
        what = f"installing torch and {len(pinned()) - 1} packages, which may take minutes"
        with phase(what if first else "bringing .venv up to date"):
            install(is_first=first)
            compile_installed()
        STAMP.write_text(wanted, encoding="utf-8")


def pinned() -> list[str]:
    """Return the lines of constraints.txt that pin a version; torch is the first."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if "==" in line]


def install(*, is_first: bool) -> None:
    """Install what the two lists of requirements have: what is pinned the first time, and siblings whose links changed.

    Several pips are busy with it; what they cannot install, or leave out, the last ones install or report.
    """
    new = VENV / "links.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    folders = []
    for name in (NO_DEPS, "requirements.txt"):
        text, more = with_links((ROOT / name).read_text(encoding="utf-8"), new)
        (VENV / name).write_text(text, encoding="utf-8")
        folders += more
    link(new, folders)
    changed = [file for file in sorted(new.iterdir()) if is_changed(file, LINKS / file.name)]
    if gone := [file.name for file in sorted(LINKS.glob("*")) if not (new / file.name).exists()]:
        uninstall([name.partition("-")[0] for name in gone])
    torch, *others = pinned()
    parts = [[torch], *(others[part::PARTS] for part in range(PARTS))] if is_first else []
    if changed:
        # The sooner the better: pip reads all that is there for each. It takes a wheel of the same version for the one
        # that is installed.
        parts.insert(0, ["--force-reinstall", *map(str, changed)])

    def attempt(words: list[str]) -> None:
        with contextlib.suppress(SystemExit):
            pip(PYTHON, "--no-deps", *words, log=PIP_LOG)
        if words == [torch]:
            compile_installed("torch", jobs=1)  # a third of all

    with ThreadPoolExecutor(2 + PARTS) as pool:
        list(pool.map(attempt, parts))
    if not is_complete():
        pip(PYTHON, "--no-deps", "-r", str(VENV / NO_DEPS), log=PIP_LOG)
        pip(PYTHON, "-r", str(VENV / "requirements.txt"), log=PIP_LOG)
    shutil.rmtree(LINKS, ignore_errors=True)
    new.rename(LINKS)


def is_complete() -> bool:
    """Return True if the pinned versions and both lists are installed, with all dependencies of the second one."""
    listed = [(VENV / name).read_text(encoding="utf-8") for name in (NO_DEPS, "requirements.txt")]
    alone = "\n".join([*pinned(), listed[0]])
    command = [str(PYTHON), "-c", IS_INSTALLED, alone, listed[1]]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def with_links(requirements: str, wheels: Path) -> tuple[str, list[Path]]:
    """Return requirements with the wheels that `link` makes in place of the siblings, and the siblings' folders."""
    folders = []

    def wheel(line: re.Match[str]) -> str:
        folders.append(ROOT / line[1])
        project = metadata(folders[-1])
        file = f"{project['name'].replace('-', '_')}-{project['version']}-py3-none-any.whl"
        return f"{project['name']}{line[2]} @ {(wheels / file).as_uri()}"

    return re.sub(r"^-e \./([^\s\[]+)(\S*)$", wheel, requirements, flags=re.MULTILINE), folders


def link(wheels: Path, folders: list[Path]) -> None:
    """Build wheels that link to `folders`, in one process: pip would start three of them for each."""
    command = [str(PYTHON), "-c", LINKING, str(wheels), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        stop("a distribution of this tree cannot be built:\n" + relevant(done.stdout + done.stderr))


def uninstall(names: list[str]) -> None:
    """Remove distributions that have left the tree; their entry points would still be found."""
    command = [str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", *names]
    subprocess.run(command, capture_output=True, check=False)


def is_changed(file: Path, before: Path) -> bool:
    return not before.exists() or file.read_bytes() != before.read_bytes()


def make_venv(folder: Path) -> None:
    """Make a virtual environment in `folder`."""
    command = [sys.executable, "-m", "venv", str(folder)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        stop(
            f"{sys.executable} cannot make a virtual environment in {folder}. On Debian and Ubuntu the module is a "
            f"package: apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv\n"
            + relevant(done.stdout + done.stderr)
        )


def compile_installed(package: str = "", *, jobs: int = 0) -> None:
    """Compile what pip installed, on all cores; pip would use one. Files that no Python can read are left out."""
    options = ["-qq", "-j", str(jobs), "-x", SELDOM_IMPORTED]
    pattern = f"lib/*/site-packages/{package}" if package else "lib"
    for folder in VENV.glob(pattern):
        command = [str(PYTHON), "-m", "compileall", *options, str(folder)]
        subprocess.run(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            env=test_env(),
        )


def pip(python: Path, *words: str, log: Path) -> None:
    """Run `pip install WORDS` under the constraints, in the root: paths in requirements.txt start there.

    What pip prints is appended to `log`; if it fails, its last lines that matter are shown. Nothing is compiled.
    """
    options = ["--disable-pip-version-check", "--progress-bar=off", "--no-compile"]
    options += ["-c", "constraints.txt"]
    command = [str(python), "-m", "pip", "install", *options, *words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+", encoding="utf-8") as file:
        start = file.tell()
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False)
        file.seek(start)
        printed = file.read()
    if done.returncode:
        stop(
            f"pip ended with status {done.returncode}; {log} has all that it printed, of which this matters:\n"
            + relevant(printed)
        )


def relevant(printed: str) -> str:
    """Return the last lines of an installer that report more than progress, indented."""
    lines = [line for line in printed.splitlines() if not PROGRESS.match(line)]
    return "\n".join(f"  {line}" for line in lines[-SHOWN_LINES:])


def test_env() -> dict[str, str]:
    """Return the environment for tests: small tensors want one thread, and cores are shared.

    The tests start hundreds of processes: each would compile the tree again if none may keep what it compiled.
    """
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONDONTWRITEBYTECODE": ""}


def become(*command: object, env: dict[str, str] | None = None) -> NoReturn:
    """Turn into `command`; signals and exit statuses are its own."""
    os.execve(str(command[0]), [str(word) for word in command], env or dict(os.environ))


# ---------------------------------------------------------------------------------------------------- verbs


def run(words: list[str]) -> NoReturn:
    """`tenonry WORDS`, in the folder where the person is."""
    ensure_environment()
    become(PYTHON, VENV / "bin" / "tenonry", *(words or ["serve", "demo"]))


def bench(words: list[str]) -> NoReturn:
    """`tenonry bench WORDS`, or the parity zoo."""
    ensure_environment()
    if words[:1] == ["parity"]:
        os.chdir(ROOT / "tests" / "parity")
        become(PYTHON, "-m", "parity_zoo", *words[1:], env=test_env())
    become(PYTHON, VENV / "bin" / "tenonry", "bench", *words)


def test(words: list[str]) -> int:
    """Tests in `.venv`: those of a tier, or those that are named; or each distribution's in its own environment."""
    if words[:1] == ["--isolated"]:
        return test_isolated(words[1:])
    ensure_environment()
    os.chdir(ROOT)
    if words[:1] == ["--unit"]:
        named = words[1:] or ["-n", str(AT_A_TIME), "--dist", "loadfile", *unit_folders()]
        become(PYTHON, "-m", "pytest", "-q", "-m", UNIT, UNIT_EFFORT, *named, env=test_env())
    if words not in ([], ["--all"]):
        become(PYTHON, "-m", "pytest", *words, env=test_env())
    if words:
        os.environ["TENONRY_EXPLORE"] = "1"  # hypothesis draws other examples than the last time
    env = test_env()
    if not list(ROOT.glob(LAST_COMPILED)):
        env["TESTERS_HEAD_START_S"] = str(HEAD_START_S)
    with tempfile.TemporaryFile() as output_of_ray, tempfile.TemporaryDirectory() as caches:
        chosen = [] if words else ["-m", "not nightly"]
        command = [str(PYTHON), "-m", "pytest", "-q", *chosen, "-o"]
        ray_command = [*command, f"cache_dir={caches}/ray", *ALONE]
        # Ray's tests wait more than they compute, so they share the time of the others.
        ray = subprocess.Popen(
            ray_command,
            env=test_env(),
            stdout=output_of_ray,
            stderr=subprocess.STDOUT,
            preexec_fn=lower,  # noqa: PLW1509 - no other thread runs
        )
        others = [*command, f"cache_dir={caches}/others"]
        in_parallel = [
            "-n",
            str(TESTERS),
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",  # files with few tests, but long ones, would come last
            *[f"--deselect={path}" for path in ALONE],
        ]
        status = subprocess.run(
            [*others, *in_parallel], env=env, check=False, preexec_fn=lower
        ).returncode
        ray_status = ray.wait()
        output_of_ray.seek(0)
        sys.stdout.write(output_of_ray.read().decode())
        status = without_races(others, Path(caches, "others"), status)
        ray_status = without_races(ray_command, Path(caches, "ray"), ray_status)
    return summary("test", {"all but Ray": status, "Ray": ray_status})


def unit_folders() -> list[str]:
    """Return the folders of tests of the tier `unit`; in the others, collecting would find none."""
    own = [f"{folder.relative_to(ROOT)}/tests" for folder in distributions().values()]
    return [folder for folder in own if folder not in ALONE] + ["tests/architecture"]


def lower() -> None:
    """Lower the priority of this process, in a child before its program begins."""
    os.nice(NICENESS)


def without_races(command: list[str], cache: Path, status: int) -> int:
    """Run the one or two tests that failed once more, alone, and return the status of that run; more are no race.

    One that passes then is named as unstable: a race, in the test or in what it tests, which is to be mended.
    """
    failed = cache / "v" / "cache" / "lastfailed"
    names = list(json.loads(failed.read_text("utf-8"))) if failed.exists() else []
    if status != 1 or not 0 < len(names) <= TRIED_AGAIN:
        return status
    say("once more, alone: " + ", ".join(names))
    alone = subprocess.run([*command, "--lf"], env=test_env(), check=False).returncode
    if alone == 0:
        say(
            "UNSTABLE: "
            + ", ".join(names)
            + " passed alone: a race, in the test or in what it tests"
        )
    return alone


def test_isolated(words: list[str]) -> int:
    """Test distributions, two at a time, each with the kernel, the testkit and what it declares, and no more.

    What is installed are built wheels, no links into the tree: a file that a wheel lacks is missed here. An
    extra called `test` may declare what only the tests need.
    """
    names = choose(words)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = dict(zip(names, pool.map(isolated_status, names), strict=True))
    return summary("isolated", results)


def isolated_status(name: str) -> int:
    """Test one distribution and show what its tests printed and how long all of it took."""
    start = time.monotonic()
    log = ROOT / ".isolated" / f"{name}.log"
    try:
        status = isolate(name, log)
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        log.unlink(missing_ok=True)
    except SystemExit as error:  # no environment: the others still have their turn
        status = 1
        printed = f"{error.code}\n"
    took = time.monotonic() - start
    with PRINTING:
        print(printed, end="", file=sys.stderr, flush=True)
        say(f"isolated {name}: {outcome(status)}, {took:.0f} s")
    return status


def isolated_requirements(name: str) -> tuple[list[str], list[str]]:
    """Return what the environment of one distribution gets, and what it gets without what that requires.

    Extras stand as what they require: pip 23 does not see that a path with extras answers the bare name.
    """
    known = distributions()
    apart = without_dependencies()
    paths = []
    bare = []
    wanted = closure({"tenonry": set(), "tenonry-testkit": set(), name: {"test"}})
    for dist, asked in wanted.items():
        project = metadata(known[dist])
        lines = [line for extra in asked for line in project["optional-dependencies"][extra]]
        path = f"./{known[dist].relative_to(ROOT)}"
        if dist in apart:
            bare.append(path)
            lines += project["dependencies"]
        else:
            paths.append(path)
        for line in lines:
            requirement, _ = required(line)
            if requirement in apart:
                bare.append(line)
            elif requirement not in known:
                paths.append(line)
    return paths, bare


def isolate(name: str, log: Path) -> int:
    """Build the environment of one distribution, run its tests there, remove it; return pytest's status.

    `log` ends with what pytest printed.
    """
    folder = ROOT / ".isolated" / name
    python = folder / "bin" / "python"
    paths, bare = isolated_requirements(name)
    env = {key: value for key, value in test_env().items() if key != "PYTHONPATH"}
    shutil.rmtree(folder, ignore_errors=True)
    log.unlink(missing_ok=True)
    try:
        make_venv(folder)
        pip(python, *BACKEND, log=log)
        pip(python, *paths, "pytest-timeout", "--no-build-isolation", log=log)
        if bare:
            pip(python, "--no-deps", *bare, "--no-build-isolation", log=log)
        tests = str(distributions()[name] / "tests")
        # Twice the usual limit: the first test of a kind compiles what it imports.
        limit = ["-o", "timeout=120"]
        command = [str(python), "-m", "pytest", "-q", "-c", "pyproject.toml", *limit, tests]
        with log.open("w", encoding="utf-8") as file:
            done = subprocess.run(
                command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, check=False
            )
        return done.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check(words: list[str]) -> int:
    """Run the static checks, all of them even when one fails."""
    ensure_environment()
    fix = "--fix" in words
    checks: dict[str, list[str | Path]] = {
        "ruff": ["-m", "ruff", "check", *["--fix"] * fix, "."],
        "format": ["-m", "ruff", "format", *["--check"] * (not fix), "."],
        "mypy": ["-m", "mypy"],
        "layers": [VENV / "bin" / "lint-imports"],
        "declared": ["tests/architecture/declared_imports.py"],
    }
    chosen = [word for word in words if word != "--fix"] or list(checks)
    for name in chosen:
        if name not in checks:
            stop(f"no check {name!r}; there are: {', '.join(checks)}")

    def status(name: str) -> int:
        command = [PYTHON, *checks[name]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
        with PRINTING:
            say(f"check {name}")
            print(done.stdout + done.stderr, end="", flush=True)
        return done.returncode

    # Side by side, but that two programs do not mend the same files.
    with ThreadPoolExecutor(1 if fix else AT_A_TIME) as pool:
        results = dict(zip(chosen, pool.map(status, chosen), strict=True))
    return summary("check", results)


def outcome(status: int) -> str:
    return "ok" if status == 0 else f"FAILED ({status})"


def summary(what: str, results: dict[str, int]) -> int:
    """Say how each part ended; return the exit status of the whole."""
    say(f"{what}: " + ", ".join(f"{name} {outcome(status)}" for name, status in results.items()))
    return int(any(results.values()))


VERBS = {"run": run, "test": test, "check": check, "bench": bench}


def main(words: list[str]) -> int:
    """Run one verb; return the exit status."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(__doc__)
        return 0 if words else 2
    if words[0] not in VERBS:
        stop(f"no verb {words[0]!r}; there are: {', '.join(VERBS)} (python3 dev.py --help)")
    try:
        return VERBS[words[0]](words[1:])
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    need_python()
    sys.exit(main(sys.argv[1:]))
