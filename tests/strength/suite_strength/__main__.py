"""Command line: `python3 dev.py strength`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from suite_strength.corpus import run_corpus
from suite_strength.subjects import sampled
from suite_strength.table import problems, table
from tenonry_testkit.suites import SUITES

MUTANTS = 200


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="dev.py strength",
        description="Measure the conformance suites: broken plugins caught, correct ones accepted, mutants killed.",
    )
    parser.add_argument(
        "part",
        nargs="?",
        choices=("corpus", "mutants"),
        help="Measure this part alone. [default: both]",
    )
    parser.add_argument(
        "--kind",
        action="append",
        choices=sorted(SUITES),
        default=[],
        help="Restrict the corpus to this kind; may be repeated.",
    )
    parser.add_argument(
        "--mutants", type=int, default=MUTANTS, metavar="N", help="[default: %(default)s]"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="Sample of the mutants. [default: %(default)s]"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="Processes. [default: %(default)s]"
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    return parser.parse_args(words)


def main() -> int:
    """Measure, print, and return 1 below a bound."""
    args = parse()
    kinds, killing = {}, None
    if args.part != "mutants":
        kinds = run_corpus(args.kind, jobs=args.jobs)
    if args.part != "corpus":
        from suite_strength.mutation import try_mutants

        killing = try_mutants(sampled(args.mutants, args.seed), args.jobs)
    found = problems(kinds, killing)
    if args.json:
        answer: dict[str, Any] = {
            "kinds": {kind: vars(outcome) for kind, outcome in kinds.items()},
            "mutants": None,
            "problems": found,
        }
        if killing is not None:
            answer["mutants"] = {
                "killed": {str(subject): test for subject, test in killing.killed.items()},
                "stopped": [str(subject) for subject in killing.slow],
                "survivors": [str(subject) for subject in killing.survivors],
                "longest_s": round(killing.longest_s, 1),
                "share": round(killing.share, 3),
            }
        print(json.dumps(answer, indent=1))
    else:
        print("\n".join([*table(kinds, killing), *found]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
