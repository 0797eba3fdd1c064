"""Launcher `v1-launcher`: engine processes on this node, and a record of each start. Front end."""

from __future__ import annotations

import logging

from tenonry.interfaces.launcher import EngineSpec, LauncherContext, engine_name
from tenonry.launch.process import ProcessLauncher

logger = logging.getLogger("tenonry.v1_launcher")


class V1Launcher(ProcessLauncher):
    """Starts engines as `process` does. `started`: names of all engines so far, in order."""

    interface_version = 1

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self.started: list[str] = []

    def start(self, engines: list[EngineSpec]) -> None:
        super().start(engines)
        names = [engine_name(spec.engine_index) for spec in engines]
        self.started += names
        logger.info("started %s", ", ".join(names))
