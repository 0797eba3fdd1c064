"""`tenonry plugins new KIND NAME`: a package with a working plugin, its tests and a CI file. Command line."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from tenonry.errors import ConfigError, PluginError
from tenonry.interfaces.command import Command


class NewCommand(Command):
    """Writes the package of a new plugin."""

    summary = "Create a package for a new plugin: working code, tests, README and CI file."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "kind", help="Kind of plugin, such as scheduler; `tenonry plugins list` shows all."
        )
        parser.add_argument(
            "name", help="Name of plugin and package: lower-case words with dashes between."
        )
        parser.add_argument(
            "--into",
            metavar="DIR",
            type=Path,
            help="Folder of the package, new or empty. Defaults to the name.",
        )

    def run(self, args: argparse.Namespace) -> int:
        from tenonry.plugin.discovery import distribution_of_module, installed
        from tenonry_author_tools.scaffold import kinds, write_package
        from tenonry_commands.plugins import points

        kind = args.kind.replace("-", "_")
        point = next((each for each in points() if each.kind == kind), None)
        if kind not in kinds() or point is None:
            near = difflib.get_close_matches(kind, kinds(), n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise ConfigError(
                f"no template for kind '{args.kind}'; {hint}kinds: {', '.join(kinds())}"
            )
        for record in installed(point):
            if record.name == args.name:
                raise PluginError(
                    f"name '{args.name}' is taken by {record.label()}; choose another"
                )
        module = args.name.replace("-", "_")
        owner = " ".join(distribution_of_module(module)).strip()
        if owner or module in sys.stdlib_module_names:
            raise PluginError(
                f"name '{args.name}': module {module} belongs to {owner or 'Python'}; choose another"
            )
        folder = args.into or Path(args.name)
        for path in write_package(point, args.name, folder):
            sys.stdout.write(f"{path}\n")
        shown = folder if folder.is_absolute() else f"./{folder}"
        sys.stdout.write(f"\nnext: pip install -e {shown} && tenonry plugins check {shown}\n")
        return 0
