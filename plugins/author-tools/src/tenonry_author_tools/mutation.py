"""Mutation of a plugin: which small changes of its source do its own tests let live? Command line.

The package is copied; each mutant is written into the copy, and the tests run there.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.mutants import Mutant, mutants
from tenonry_author_tools.subject import Subject

SEED = 0  # the same mutants in each run
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "build", "dist", "*.egg-info")
TIMES_AS_LONG = 5.0  # as all tests; a mutant that needs more hangs, and is noticed
LEAST_S = 20.0


@dataclass
class Mutation:
    """Outcome: how many mutants there are, and how many of those tried the tests killed."""

    num_all: int = 0
    num_tried: int = 0
    survivors: list[tuple[Path, Mutant]] = field(default_factory=list)

    def __str__(self) -> str:
        killed = self.num_tried - len(self.survivors)
        return f"mutants: {killed} of {self.num_tried} killed, {self.num_all} in total"

    def record(self) -> dict[str, int]:
        """Numbers for JSON."""
        return {"all": self.num_all, "tried": self.num_tried, "survived": len(self.survivors)}

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """One finding for each survivor."""
        for file, mutant in self.survivors:
            text = f"no test fails with this change: {mutant.text}"
            yield Finding(Rule.MUTANT, subject.label, text, str(file), mutant.line)


def mutate(subject: Subject, most: int) -> Mutation:
    """Try up to `most` mutants. Raises ConfigError without the source, or where the tests do not test the copy."""
    from tenonry_author_tools.suite import has_suites, passes, written_suites

    source = subject.path[0] if subject.path else None
    if source is None:
        raise ConfigError(f"--mutate needs the folder of {subject.name}, with its source")
    folder = subject.metadata.parent.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary, folder.name)
        shutil.copytree(folder, place, ignore=LEFT_OUT)
        copied = place / source.relative_to(folder)
        if subject.tests:
            tests = place / subject.tests.resolve().relative_to(folder)
        else:
            written = has_suites() and written_suites(subject, Path(temporary))
            if not written:
                raise ConfigError(
                    f"there are no tests to run for {subject.name}: add a folder tests"
                )
            tests = written
        begin = time.monotonic()
        if not passes(subject, tests, Path(temporary), copied):
            raise ConfigError(
                "the tests fail in a copy of the package: they need files outside of it"
            )
        limit = LEAST_S + TIMES_AS_LONG * (time.monotonic() - begin)
        files = [file for file in copied.rglob("*.py") if not file.is_relative_to(tests)]
        outcome = try_mutants(
            sorted(files), lambda: passes(subject, tests, Path(temporary), copied, limit), most
        )
        outcome.survivors = [
            (source / file.relative_to(copied), mutant) for file, mutant in outcome.survivors
        ]
        return outcome


def try_mutants(files: list[Path], passes: Callable[[], bool], most: int) -> Mutation:
    """Write each mutant of these files, and run the tests; the files are then as before.

    Files that are not Python of this interpreter, such as templates, are skipped. Raises ConfigError where tests pass
    although no file can be imported: they import others.
    """
    texts, found = {}, []
    for file in files:
        try:
            text = file.read_text("utf-8")
            found += [(file, mutant) for mutant in mutants(text)]
        except (SyntaxError, ValueError):
            continue
        texts[file] = text
    chosen = found
    if len(found) > most:
        places = random.Random(SEED).sample(range(len(found)), most)  # noqa: S311 - no secret
        chosen = [found[place] for place in sorted(places)]
    outcome = Mutation(len(found), len(chosen))
    for file in texts:
        file.write_text("raise ImportError('replaced by a mutant')\n", "utf-8")
    are_others = passes()
    for file, text in texts.items():
        file.write_text(text, "utf-8")
    if are_others:
        raise ConfigError(
            "the tests import other files than those of this package: uninstall it, or install it with pip install -e"
        )
    for file, mutant in chosen:
        file.write_text(mutant.source, "utf-8")
        if passes():
            outcome.survivors.append((file, mutant))
        file.write_text(texts[file], "utf-8")
    return outcome
