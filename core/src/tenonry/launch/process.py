"""The launcher `process`: engine processes on this node, as children of the front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.gpus import visible_devices
from tenonry.info import PluginRecord
from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext, engine_name
from tenonry.interfaces.worker import Worker
from tenonry.launch.devices import device_environment
from tenonry.launch.forks import IS_SUPPORTED, ForkServer
from tenonry.launch.supervise import STOP_TIMEOUT_S, ExitCallback, Supervisor, start_fork_server
from tenonry.plugin.plan import PluginPlan, load_class

ENGINE_ROLE = "tenonry.engine.proc:run_engine"
IMPORTS_ROLE = "tenonry.engine.imports:preload"


def watch_options(config: EngineConfig) -> dict[str, Any]:
    """When the parent of an engine's process takes it for one that hangs: options of `Supervisor.start`."""
    limit = config.step_timeout
    limit += max(1.0, limit / 10)  # an executor that watches its ranks names the hung one first
    return {"silence_s": limit, "silence_hint": " (--step-timeout)"}


class EngineImports(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's process imports beyond the kernel depends on these."""

    worker: PluginRecord
    model_text: str


class ProcessLauncher(Launcher):
    """One child per engine; forks of one process where its worker says what to import, and there is no GPU."""

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self._supervisor = Supervisor()
        self._forks: ForkServer | None = None

    def prepare(self, engine: EngineSpec) -> None:
        self._fork_server(engine)

    def start(self, engines: list[EngineSpec]) -> None:
        try:
            forks = self._fork_server(engines[0])
            for spec in engines:
                self._supervisor.start(
                    engine_name(spec.engine_index),
                    ENGINE_ROLE,
                    {"spec": msgspec.json.encode(spec).decode()},
                    **watch_options(self.context.config),
                    environment=device_environment(self.context.config, spec.local_rank),
                    forks=forks,
                )
        except BaseException:
            self.stop([engine_name(spec.engine_index) for spec in engines])
            raise

    def _fork_server(self, spec: EngineSpec) -> ForkServer | None:
        """Started before the first engine, and again once something ended it; None where engines are no forks.

        Other launchers have others: engines that replace some may be of plugins that were installed since.
        """
        has_gpus = self.context.config.device != "cpu" and visible_devices()
        if not IS_SUPPORTED or has_gpus:
            return None
        plan = PluginPlan.decode(spec.plan_text)
        if not _says_imports(plan) or (self._forks is not None and self._forks.has_given_up):
            return None
        if self._forks is None or not self._forks.is_alive:
            imports = EngineImports(worker=plan.get("worker"), model_text=spec.model_text)
            self._forks = start_fork_server(IMPORTS_ROLE, msgspec.json.encode(imports).decode())
        return self._forks

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
        if self._forks is not None:
            self._forks.close()


def _says_imports(plan: PluginPlan) -> bool:
    """Whether the worker of engines runs in their process, and says what to import."""
    executor = load_class(plan.get("executor"))
    worker = load_class(plan.get("worker"))
    owner = next(base for base in worker.__mro__ if "preload" in vars(base))
    return not executor.runs_elsewhere and owner is not Worker
