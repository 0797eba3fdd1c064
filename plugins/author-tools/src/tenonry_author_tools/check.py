"""`tenonry plugins check NAME|PATH`: all that can be known of a plugin without a model. Command line."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tenonry.interfaces.command import Command
from tenonry_author_tools.argument_types import count, seconds

MUTANTS = 40  # by default: minutes, where the tests take seconds


class CheckCommand(Command):
    """Checks the plugins of one distribution, and grades it."""

    summary = "Check metadata, import, interface and tests of a plugin, and grade it."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "target",
            help="Folder with pyproject.toml, or name of an installed distribution or plugin.",
        )
        parser.add_argument(
            "--no-suite", action="store_true", help="Skip the tests, which limits the grade to C."
        )
        parser.add_argument(
            "--mutate",
            nargs="?",
            type=count,
            const=MUTANTS,
            metavar="N",
            help="Also test N small changes of the source, each of which should fail a test. [N: %(const)s]",
        )
        parser.add_argument(
            "--badge",
            type=Path,
            metavar="FILE",
            help="Write a badge of interface versions and grade: an .svg image, or .json for an endpoint.",
        )
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument(
            "--import-timeout",
            type=seconds,
            default=20.0,
            metavar="S",
            help="Import timeout per module in seconds. [default: %(default)g]",
        )

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_author_tools.badge import check_badge, message, write_badge
        from tenonry_author_tools.declared import check_metadata
        from tenonry_author_tools.imported import check_import
        from tenonry_author_tools.installation import checked_points
        from tenonry_author_tools.subject import find_subject
        from tenonry_author_tools.suite import check_suite

        if args.badge:
            check_badge(args.badge)
        known, _ = checked_points(args.import_timeout)
        subject = find_subject(args.target, known)
        findings = [*check_metadata(subject, known)]
        versions: dict[str, tuple[int, int]] = {}
        for record, point in subject.records:
            findings += check_import(subject, record, point, args.import_timeout, versions)
        lacks: set[str] = set()
        has_errors = any(finding.is_error for finding in findings)
        if not args.no_suite and not has_errors:
            findings += check_suite(subject, lacks)
        mutation = None
        if args.mutate and not any(finding.is_error for finding in findings):
            from tenonry_author_tools.mutation import mutate

            mutation = mutate(subject, args.mutate)
            findings += mutation.findings(subject)
        grade = _grade([finding.is_error for finding in findings], has_suite=not args.no_suite)
        if args.badge:
            write_badge(args.badge, message(versions, grade), grade)
        names = [f"{record.kind}/{record.name}" for record, _ in subject.records]
        tiers = dict(zip(names, (point.tier for _, point in subject.records), strict=True))
        if args.json:
            rows = [finding.record() for finding in findings]
            answer: dict[str, Any] = {
                "distribution": subject.label,
                "plugins": names,
                "tiers": tiers,
                "lacks": sorted(lacks),
                "grade": grade,
                "findings": rows,
            }
            if mutation is not None:
                answer["mutants"] = mutation.record()
            sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        else:
            labels = [f"{name} ({tier})" for name, tier in tiers.items()]
            lines = [f"{subject.label}: {', '.join(labels) or 'no plugins'}", *map(str, findings)]
            if lacks:
                lines.append(f"lacks, as declared: {', '.join(sorted(lacks))}")
            if mutation is not None:
                lines.append(str(mutation))
            sys.stdout.write("\n".join([*lines, f"grade {grade}: {GRADES[grade]}"]) + "\n")
        return 1 if grade == "F" else 0


GRADES = {
    "A": "no findings, tests included",
    "B": "warnings only, tests included",
    "C": "no errors; tests were not run",
    "F": "errors",
}


def _grade(are_errors: list[bool], *, has_suite: bool) -> str:
    """Grade of a distribution by its findings, one flag each."""
    if any(are_errors):
        return "F"
    if not has_suite:
        return "C"
    return "B" if are_errors else "A"
