"""The page of commands."""

from __future__ import annotations

from reference_pages.text import NOTICE
from tenonry.cli import COMMANDS, make_parser
from tenonry.plugin.discovery import installed
from tenonry.plugin.manager import resolve_point
from tenonry_commands.plugins import PLUGIN_COMMANDS


def commands_page() -> str:
    """Every verb of the command line."""
    parts = ["# Commands\n", NOTICE, "`tenonry VERB --help` lists the flags of one.\n"]
    parts += ["| command | does | from |", "|---|---|---|"]
    for entry in installed(COMMANDS):
        _, command = make_parser(entry.name)
        parts.append(f"| `tenonry {entry.name}` | {command.summary} | {entry.distribution} |")
    for entry in installed(PLUGIN_COMMANDS):
        found, _ = resolve_point(PLUGIN_COMMANDS, entry.name)
        parts.append(f"| `tenonry plugins {entry.name}` | {found.summary} | {entry.distribution} |")
    return "\n".join(parts) + "\n"
