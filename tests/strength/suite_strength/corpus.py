"""Runs the corpus: broken plugins that the suites must reject, correct ones that they must accept. Command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from suite_strength.cases import BROKEN
from tenonry_testkit.suites import SUITES

ROOT = Path(__file__).parents[3]
FOLDERS = ("plugins", "executors", "schedulers", "stat_loggers", "tests")
# Environments, and frozen packages, which are importable only in their own test.
LEFT_OUT = {".venv", "compat"}
# Files that cannot have a case are not even imported.
HAS_CASES = re.compile(r"mark\.(broken|correct)\(|\bclass \w+\((\w+\.)?\w*Contract\w*\)")
MIN_BROKEN, MIN_BROKEN_SCHEDULERS = 8, 40
PASSED = ["passed"]


@dataclass
class KindOutcome:
    """Cases of one kind by name: True for a broken plugin that was caught, and for a correct one that was accepted.

    A correct plugin whose tests are all skipped is in neither; `skipped` has it.
    """

    broken: dict[str, bool] = field(default_factory=dict)
    correct: dict[str, bool] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Cases that went wrong, each with how."""
        missed = [f"not caught: {name}" for name, caught in self.broken.items() if not caught]
        refused = [f"rejected: {name}" for name, accepted in self.correct.items() if not accepted]
        return missed + refused

    def shortfall(self, kind: str) -> str | None:
        """What the corpus of a kind lacks."""
        least = MIN_BROKEN_SCHEDULERS if kind == "scheduler" else MIN_BROKEN
        if len(self.broken) < least:
            return f"{len(self.broken)} broken plugins, at least {least} are needed"
        return None if self.correct else "no correct plugin ran"


def files_with_cases() -> list[Path]:
    """Test files that may have a case."""
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if LEFT_OUT.isdisjoint(path.relative_to(ROOT).parts)
        and HAS_CASES.search(path.read_text("utf-8"))
    ]


def run_corpus(
    kinds: Collection[str] = (), files: Collection[Path] = (), jobs: int = 1
) -> dict[str, KindOutcome]:
    """Outcomes by kind, of the kinds and files given or of all. Raises RuntimeError if pytest ends early."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "outcomes.json")
        command = [
            sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
            "-p", "suite_strength.cases", f"--strength-file={written}", f"--strength-kinds={','.join(kinds)}",
            *(["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []),
            *map(str, files or files_with_cases()),
        ]  # fmt: skip
        paths = [str(ROOT / "tests" / "strength"), os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr, check=False)
        if not written.exists():
            raise RuntimeError(f"pytest exited with status {done.returncode} before it was done")
        rows = json.loads(written.read_text("utf-8"))
    return outcomes_of(rows, kinds or SUITES)


def outcomes_of(
    rows: list[tuple[str, str, str, list[str]]], kinds: Collection[str]
) -> dict[str, KindOutcome]:
    """Outcomes by kind from the rows that `cases` writes."""
    found = {kind: KindOutcome() for kind in kinds}
    for role, kind, name, outcomes in rows:
        if role == BROKEN:
            found[kind].broken[name] = outcomes == PASSED
        elif outcomes == ["skipped"]:
            found[kind].skipped.append(name)
        else:
            found[kind].correct[name] = "failed" not in outcomes
    return found
