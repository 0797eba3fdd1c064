"""The page of supported versions: each combination installed from wheels in an environment of its own, and tried."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import operator
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dev import paths, programs
from dev.console import phase, say, stop

PAGE = "docs/reference/matrix.md"
USAGE = "python3 dev.py matrix --wheels FOLDER [PYTHON/TORCH/TRANSFORMERS …], or: matrix --page"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = {"torch": "2.11.0", "transformers": "5.17.0"}
SUITES = (
    "schedulers/batching/tests/test_contract.py",
    "plugins/worker-torch/tests/test_contract.py",
)
SMOKE = """
import platform
from importlib.metadata import packages_distributions, version
from tenonry import LLM, SamplingParams
for name, owners in packages_distributions().items():
    if owners[0].startswith("tenonry"):
        __import__(name)
for name, wanted in (("torch", "{torch}"), ("transformers", "{transformers}")):
    assert version(name).split("+")[0] == wanted, (name, version(name))
llm = LLM(model="demo")
(output,) = llm.generate(["Once upon a time"], SamplingParams(max_tokens=8, temperature=0))
assert output.outputs[0].text.strip()
llm.shutdown()
import torch
print(f"Python {{platform.python_version()}}, torch {{torch.__version__}}")
"""
NOT_RUN = "not run"
ROW = re.compile(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", re.MULTILINE)
HEAD = """# Matrix of versions

Each combination is installed from the wheels of one commit into an empty environment; the second version of
transformers replaces the first. There every package is imported, the demo model generates, and the contract suites of
the scheduler `batching` and the worker `torch` run. `python3 dev.py matrix --wheels FOLDER` runs what the machine has
and writes this page. A result names the release of Python and the build of torch; builds for CUDA ran without a GPU.

| Python | torch | transformers | result |
|---|---|---|---|
"""


class Combination(NamedTuple):
    """Versions of one row."""

    python: str
    torch: str
    transformers: str


def matrix(words: list[str]) -> int:
    """Run the combinations that are named, or all, and write the page."""
    results = written()
    match words:
        case ["--page"]:
            wheels, chosen = paths.ROOT, []
        case ["--wheels", folder, *named]:
            wheels = Path(folder).resolve()
            if not any(wheels.glob("tenonry-*.whl")):
                stop(
                    f"{wheels} has no wheel of tenonry; build them: "
                    f"python3 dev.py release --out {folder}"
                )
            chosen = [each for each in combinations() if not named or "/".join(each) in named]
            if named and len(chosen) < len(named):
                known = " ".join("/".join(each) for each in combinations())
                stop(f"no combination {' '.join(named)}; there are: {known}")
        case _:
            stop(f"usage: {USAGE}")
    for (python, _), rows in itertools.groupby(chosen, key=operator.itemgetter(0, 1)):
        with environment(python) as own:
            for combination in rows:
                results[combination] = tried(own, combination, wheels)
                say(f"{'/'.join(combination)}: {results[combination]}")
                write(results)
    write(results)
    return int(any(result.startswith("failed") for result in results.values()))


def combinations() -> list[Combination]:
    """Return all rows: each Python with the oldest and the tested versions of torch and transformers."""
    constraints = (paths.ROOT / "constraints.txt").read_text(encoding="utf-8")
    pairs = []
    for name, oldest in OLDEST.items():
        found = re.search(rf"^{name}==([\d.]+)$", constraints, re.MULTILINE)
        pairs.append(tuple(dict.fromkeys((oldest, found[1] if found else oldest))))
    return [Combination(*each) for each in itertools.product(PYTHONS, *pairs)]


def written() -> dict[Combination, str]:
    """Return the results on the page; a row that was never run says so."""
    page = paths.ROOT / PAGE
    rows = ROW.findall(page.read_text(encoding="utf-8")) if page.exists() else []
    known = {Combination(*row[:3]): row[3] for row in rows}
    return {each: known.get(each, NOT_RUN) for each in combinations()}


def write(results: dict[Combination, str]) -> None:
    """Write the page."""
    rows = [f"| {' | '.join([*each, result])} |\n" for each, result in results.items()]
    (paths.ROOT / PAGE).write_text(HEAD + "".join(rows), encoding="utf-8")


@contextlib.contextmanager
def environment(version: str) -> Iterator[Path | None]:
    """Make an environment and return its Python, or None if the machine lacks this version; remove it afterwards."""
    python = interpreter(version)
    if python is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", Path(folder, "venv")], check=True)
        yield Path(folder, "venv", "bin", "python")


def tried(own: Path | None, combination: Combination, wheels: Path) -> str:
    """Install a combination and run smoke and suites; return one line."""
    if own is None:
        return f"{NOT_RUN}: no Python {combination.python} on the machine"
    with phase(f"matrix {'/'.join(combination)}"):
        wanted = [f"torch=={combination.torch}", f"transformers=={combination.transformers}"]
        ours = ["tenonry[standard]", "tenonry-testkit", "pytest", "pytest-timeout", "hypothesis"]
        words = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-compile",
            "--find-links",
            str(wheels),
            *wanted,
            *ours,
        ]
        done = subprocess.run([own, *words], capture_output=True, encoding="utf-8", check=False)
        if done.returncode:
            lacks = re.search(r"No matching distribution found for (\S+)", done.stderr)
            reason = f"no {lacks[1]} for it here" if lacks else last_line(done.stderr)
            return f"{NOT_RUN}: {reason}" if lacks else f"failed to install: {reason}"
        return judged(own, combination)


def judged(python: Path, combination: Combination) -> str:
    """Run smoke and suites in an environment; return one line."""
    smoke = SMOKE.format(**combination._asdict())
    suites = ["-q", "-m", "not nightly", "--testkit-effort=0.1", "-p", "no:cacheprovider", *SUITES]
    printed = []
    for name, step in (("smoke", ["-c", smoke]), ("suites", ["-m", "pytest", *suites])):
        done = subprocess.run(
            [python, *step],
            cwd=paths.ROOT,
            env=programs.test_env(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode:
            test = re.search(r"^(?:FAILED|ERROR) .*", done.stdout, re.MULTILINE)
            return f"failed in {name}: {last_line(test[0] if test else done.stderr or done.stdout)}"
        printed.append(done.stdout)
    today = dt.datetime.now(dt.UTC).date()
    versions = last_line(printed[0])
    passed = re.search(r"(\d+) passed", printed[1])
    return f"passed on {today}: {versions}; smoke, {passed[1] if passed else 0} tests of suites"


def interpreter(version: str) -> str | None:
    """Return a Python of this version that starts; a launcher may lack its Python."""
    found = shutil.which(f"python{version}")
    if found is None:
        return None
    works = subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    return found if works else None


def last_line(text: str) -> str:
    """Return the last line that is not empty, fit for a cell of a table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no output"]
    return lines[-1].replace("|", "/")[:120]
