"""The launcher `process`: engine processes on this node, as children of the front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext, engine_name
from tenonry.launch.devices import device_environment
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import FRESH, STOP_TIMEOUT_S, Child, ExitCallback, Supervisor

ENGINE_ROLE = "tenonry.engine.proc:run_engine"


def watch_options(config: EngineConfig) -> dict[str, Any]:
    """Options of `Supervisor.start` that detect a hanging engine process."""
    limit = config.step_timeout
    limit += max(1.0, limit / 10)  # an executor that watches its ranks first names the hanging one
    return {"silence_s": limit, "silence_hint": " (--step-timeout)"}


def prefix_of(child: Child) -> str:
    """Prefix of each line written by an engine, as in its log."""
    return f"[{child.name}] "


class ProcessLauncher(Launcher):
    """Starts one child per engine. A subclass may choose another `starter`, and another `role` that runs an engine."""

    supports_replacement = True
    role = ENGINE_ROLE

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self._supervisor = Supervisor()

    def starter(self, engine: EngineSpec) -> ProcessStarter:
        """Return the starter of the process of `engine`, and of those started together with it."""
        return FRESH

    def start(self, engines: list[EngineSpec]) -> None:
        try:
            starter = self.starter(engines[0])
            for spec in engines:
                self._supervisor.start(
                    engine_name(spec.engine_index),
                    self.role,
                    {"spec": msgspec.json.encode(spec).decode()},
                    **watch_options(self.context.config),
                    environment=device_environment(self.context.config, spec.local_rank),
                    starter=starter,
                    prefix=prefix_of,
                )
        except BaseException:
            self.stop([engine_name(spec.engine_index) for spec in engines])
            raise

    def stop(self, names: Sequence[str], timeout: float = STOP_TIMEOUT_S) -> None:
        self._supervisor.stop_some(names, timeout)

    def rename(self, name: str, new: str) -> None:
        self._supervisor.rename(name, new)

    def has_stepped(self, name: str) -> bool:
        return self._supervisor.has_begun(name)

    def finished(self) -> dict[str, int]:
        return self._supervisor.finished()

    def on_exit(self, callback: ExitCallback) -> None:
        self._supervisor.on_exit(callback)

    def pids(self) -> dict[str, int]:
        return self._supervisor.pids()

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        self._supervisor.stop(timeout)
