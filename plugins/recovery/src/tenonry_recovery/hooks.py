"""Hook module `recovery`: the engine recovery `auto` resumes streams where this is installed. Front end."""

from __future__ import annotations

from tenonry.plugin.hookspecs import hookimpl


@hookimpl(trylast=True)
def tenonry_get_engine_recovery(name: str) -> str | None:
    """Name the engine recovery that replaces the kernel's own, which ends the streams of a dead engine."""
    return "tenonry_recovery.recovery:ResumeStreams" if name == "auto" else None
