"""Launcher `nice-engines`: engine processes on this node, with a lower priority. Front end."""

from __future__ import annotations

import contextlib
import os

from pydantic import Field

from tenonry.interfaces.launcher import EngineSpec, LauncherContext, engine_name
from tenonry.interfaces.plugin import PluginOptions
from tenonry.launch.process import ProcessLauncher


class NiceEnginesOptions(PluginOptions):
    """Options of `--launcher-option`."""

    increment: int = Field(
        default=5, ge=0, le=19, description="Added to the niceness of the front end."
    )


class NiceEngines(ProcessLauncher):
    """Starts engines as `process` does, and raises their niceness before they load the model."""

    interface_version = 1
    Options = NiceEnginesOptions

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        options = context.options
        made = options if isinstance(options, NiceEnginesOptions) else NiceEnginesOptions()
        self.niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + made.increment)

    def start(self, engines: list[EngineSpec]) -> None:
        super().start(engines)
        pids = self.pids()
        for name in (engine_name(spec.engine_index) for spec in engines):
            if name in pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.setpriority(os.PRIO_PROCESS, pids[name], self.niceness)
