"""The launcher `process`: engine processes on this node, as children of the front end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext
from tenonry.supervise import STOP_TIMEOUT_S, Supervisor

ENGINE_ROLE = "tenonry.engine.proc:run_engine"


class ProcessLauncher(Launcher):
    """One child per engine, named `engine N`."""

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self._supervisor = Supervisor()

    def start(self, engines: list[EngineSpec]) -> None:
        try:
            for spec in engines:
                self._supervisor.start(
                    f"engine {spec.engine_index}",
                    ENGINE_ROLE,
                    {"spec": msgspec.json.encode(spec).decode()},
                    environment=spec.environment,
                )
        except BaseException:
            self.shutdown()
            raise

    def finished(self) -> dict[str, int]:
        return self._supervisor.finished()

    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        self._supervisor.on_exit(callback)

    def pids(self) -> dict[str, int]:
        return self._supervisor.pids()

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        self._supervisor.stop(timeout)
