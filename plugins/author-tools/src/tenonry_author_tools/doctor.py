"""`tenonry doctor`: faults of an installation, and what a start would choose. Command line."""

from __future__ import annotations

import argparse
import json
import sys

from tenonry.interfaces.command import Command
from tenonry_author_tools.argument_types import seconds


class DoctorCommand(Command):
    """Examines the environment, its plugins, and what Python runs at its start."""

    summary = (
        "Find faults of an installation: versions, conflicts, plugins, start-up files, devices."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")
        parser.add_argument(
            "--config", metavar="FILE", help="YAML configuration whose choice of plugins is shown."
        )
        parser.add_argument(
            "--import-timeout",
            type=seconds,
            default=20.0,
            metavar="S",
            help="Import timeout per module in seconds. [default: %(default)g]",
        )

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.errors import TenonryError
        from tenonry_author_tools.chosen import Choice, choices
        from tenonry_author_tools.environment import facts, startup_files
        from tenonry_author_tools.findings import Finding, Rule
        from tenonry_author_tools.installation import examine

        findings = examine(args.import_timeout)
        # Choosing imports hook modules, so one that hangs or exits comes first.
        chosen: list[Choice] = []
        if not any(each.is_error for each in findings):
            try:
                chosen = choices(args.config)
            except TenonryError as error:
                text = f"no start is possible: {error}"
                findings.append(Finding(Rule.START, "tenonry", text, args.config or ""))
        has_errors = any(each.is_error for each in findings)
        about, files = facts(), startup_files()
        if args.json:
            answer = {
                "environment": about,
                "startup_files": [each._asdict() for each in files],
                "chosen": [each._asdict() for each in chosen],
                "findings": [each.record() for each in findings],
            }
            sys.stdout.write(json.dumps(answer, indent=1) + "\n")
        else:
            lines = [f"{name:<12} {value}" for name, value in about.items()]
            lines += [f"{'start-up':<12} {each.file}:{each.line}: {each.text}" for each in files]
            lines += [f"{each.kind:<16} {each.name} ({each.origin}): {each.why}" for each in chosen]
            if has_errors:
                lines.append("plugins are not chosen while there are errors")
            lines += map(str, findings)
            errors = sum(each.is_error for each in findings)
            lines.append(f"{errors} errors, {len(findings) - errors} warnings")
            sys.stdout.write("\n".join(lines) + "\n")
        return 1 if has_errors else 0
