"""`tenonry plugins update FOLDER`: carries a package from interface version N−1 to N. Command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tenonry.interfaces.command import Command


class UpdateCommand(Command):
    """Rewrites a package for the current interfaces, shows the differences, and runs its tests."""

    summary = (
        "Update a package to the current interface versions: rewrite it, show the diff, test it."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="Folder with pyproject.toml.")
        parser.add_argument(
            "--check",
            action="store_true",
            help="Change nothing; status 1 if the package needs an update.",
        )
        parser.add_argument("--no-suite", action="store_true", help="Skip the tests.")

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_author_tools.subject import read_folder
        from tenonry_author_tools.suite import check_suite
        from tenonry_author_tools.updated import diff, planned
        from tenonry_commands.plugins import points

        known = points()
        subject = read_folder(args.folder, known)
        changes = planned(subject)
        for path, (old, new) in changes.items():
            sys.stdout.write(diff(path, old, new))
        count = f"{len(changes)} file{'s' * (len(changes) != 1)}"
        if not changes:
            sys.stdout.write(f"{subject.label}: nothing to update\n")
            return 0
        if args.check:
            sys.stdout.write(f"{subject.label}: {count} to update\n")
            return 1
        for path, (_, new) in changes.items():
            path.write_text(new, "utf-8")
        sys.stdout.write(f"{subject.label}: updated {count}\n")
        findings = [] if args.no_suite else [*check_suite(read_folder(args.folder, known), set())]
        for finding in findings:
            sys.stdout.write(f"{finding}\n")
        return int(any(finding.is_error for finding in findings))
