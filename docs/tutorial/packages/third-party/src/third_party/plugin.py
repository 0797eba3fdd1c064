"""Command `tenonry plugins third-party`: installed plugins by distributions other than tenonry's."""

from __future__ import annotations

import argparse
import sys

from tenonry.interfaces.command import Command

OWN = "tenonry"


class ThirdParty(Command):
    """Lists third-party plugins by distribution; the name of a distribution decides."""

    summary = "List the plugins of third-party distributions."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--fail", action="store_true", help="Exit with status 1 if there are any."
        )

    def run(self, args: argparse.Namespace) -> int:
        from tenonry_commands.plugins import plugins

        found: dict[str, list[str]] = {}
        for each in plugins():
            record = each.record
            if record.distribution.partition("-")[0] != OWN:
                label = f"{record.distribution} {record.version}".strip()
                found.setdefault(label, []).append(f"{record.kind}/{record.name}")
        for label in sorted(found):
            sys.stdout.write(f"{label}: {', '.join(sorted(found[label]))}\n")
        sys.stdout.write(f"{len(found)} third-party distributions with plugins\n")
        return int(bool(found) and args.fail)
