"""Conditions of a start, which other packages check: flags that act before any plugin is chosen. Front end.

Each is a command whose name is the flag, so that `tenonry FLAG VERB …` works, too. This module runs those that stand
behind a verb.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from tenonry.cli import COMMANDS, make_parser
from tenonry.errors import PluginNotFound
from tenonry.plugin.discovery import find_entry_point

PACKAGE = "tenonry-author-tools"
START_FLAGS = {
    "--safe-mode": "Use plugins of this project only, and name those that are left out.",
    "--locked": "Refuse the start unless the installation is as in tenonry.lock.",
    "--checked": "Refuse the start if `tenonry doctor` finds a fault of a plugin.",
    "--bisect": "Use the plugins that the current step of `tenonry bisect` tests.",
}
END = "--"  # of the flags: what follows is text


def add_start_flags(group: Any) -> None:
    """Let the help list them. Whoever reads the words before the parser takes them out."""
    for flag, text in START_FLAGS.items():
        group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)


def run_start_flags(words: Sequence[str]) -> list[str]:
    """Run the commands of these flags; returns the other words. Raises a TenonryError that refuses the start."""
    flags = words[: words.index(END)] if END in words else words
    for flag in START_FLAGS:
        if flag in flags:
            if find_entry_point(COMMANDS, flag) is None:
                raise PluginNotFound(f"{flag} needs another package: pip install {PACKAGE}")
            _, command = make_parser(flag)
            command.run(argparse.Namespace(words=None))
    rest = [word for word in flags if word not in START_FLAGS]
    return [*rest, *words[len(flags) :]]
