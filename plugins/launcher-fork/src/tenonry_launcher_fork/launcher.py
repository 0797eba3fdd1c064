"""The launcher `fork`: engine processes on this node as forks of one that has done the imports. Front end."""

from __future__ import annotations

import msgspec

from tenonry.gpus import visible_devices
from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.interfaces.worker import Worker
from tenonry.launch.process import ProcessLauncher
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import STOP_TIMEOUT_S
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_launcher_fork.forks import IS_SUPPORTED, ForkServer, start_fork_server
from tenonry_launcher_fork.preload import EngineImports

ENGINE_ROLE = "tenonry_launcher_fork.output:run_engine"
IMPORTS_ROLE = "tenonry_launcher_fork.preload:preload"


class ForkLauncher(ProcessLauncher):
    """Forks engines where their worker names its imports and there is no GPU; starts fresh interpreters elsewhere."""

    role = ENGINE_ROLE

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self._forks: ForkServer | None = None

    def prepare(self, engine: EngineSpec) -> None:
        self.starter(engine)

    def starter(self, engine: EngineSpec) -> ProcessStarter:
        """Return the fork server: started before the first engine, and again once something ended it.

        Other launchers have others: engines that replace some may be of plugins that were installed since.
        """
        fresh = super().starter(engine)
        has_gpus = self.context.config.device != "cpu" and visible_devices()
        if not IS_SUPPORTED or has_gpus:
            return fresh
        plan = PluginPlan.decode(engine.plan_text)
        if not _names_imports(plan) or (self._forks is not None and self._forks.has_given_up):
            return fresh
        if self._forks is None or not self._forks.is_alive:
            imports = EngineImports(worker=plan.get("worker"), model_text=engine.model_text)
            self._forks = start_fork_server(IMPORTS_ROLE, msgspec.json.encode(imports).decode())
        return self._forks

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        super().shutdown(timeout)
        if self._forks is not None:
            self._forks.close()


def _names_imports(plan: PluginPlan) -> bool:
    """Return True if the worker of engines runs in their process, and overrides `preload`."""
    executor = load_class(plan.get("executor"))
    worker = load_class(plan.get("worker"))
    owner = next(base for base in worker.__mro__ if "preload" in vars(base))
    return not executor.runs_elsewhere and owner is not Worker
