"""Hook module `fork`: the launcher `process` forks its engines if this distribution is installed. Front end."""

from __future__ import annotations

from tenonry.plugin.hookspecs import hookimpl


@hookimpl(trylast=True)
def tenonry_get_launcher(name: str) -> str | None:
    """Name the launcher that replaces the kernel's own, which starts a fresh interpreter for each engine."""
    return "tenonry_launcher_fork.launcher:ForkLauncher" if name == "process" else None
