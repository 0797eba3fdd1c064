"""The page of hooks."""

from __future__ import annotations

import inspect

from reference_pages.text import NOTICE, signature
from tenonry.plugin import hookspecs


def hooks_page() -> str:
    """Every hookspec with its signature, in the order of the file."""
    parts = ["# Hooks\n", NOTICE, inspect.getdoc(hookspecs) or "", ""]
    for name, function in vars(hookspecs).items():
        if name.startswith("tenonry_"):
            options = getattr(function, f"{hookspecs.PROJECT}_spec")
            wins = "the first answer other than None wins"
            first = wins if options["firstresult"] else "all implementations are called"
            parts += [
                f"## `{name}{signature(function)}`\n",
                inspect.getdoc(function) or "",
                f"\n*{first}*\n",
            ]
    return "\n".join(parts).rstrip() + "\n"
