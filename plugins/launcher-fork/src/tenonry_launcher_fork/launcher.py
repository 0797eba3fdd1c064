"""The launcher `fork`: engine processes on this node as forks of one that has done the imports. Front end."""

from __future__ import annotations

import msgspec

from tenonry.interfaces.launcher import EngineSpec, LauncherContext
from tenonry.interfaces.worker import Worker
from tenonry.launch.process import ProcessLauncher
from tenonry.launch.spawn import ProcessStarter
from tenonry.launch.supervise import STOP_TIMEOUT_S
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry_launcher_fork.forks import IS_SUPPORTED, ForkServer, start_fork_server

ENGINE_ROLE = "tenonry_launcher_fork.forked_engine:run_engine"
IMPORTS_ROLE = "tenonry_launcher_fork.preload:preload"


class ForkLauncher(ProcessLauncher):
    """Forks engines where their worker names its imports; starts fresh interpreters elsewhere.

    CUDA cannot be used in a fork of a process that has used it. The fork server has imported only; one whose imports
    opened a device exits, and engines start in fresh interpreters.
    """

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
        plan = PluginPlan.decode(engine.plan_text)
        if not IS_SUPPORTED or not _can_fork(plan):
            return fresh
        if self._forks is not None and self._forks.has_given_up:
            return fresh
        if self._forks is None or not self._forks.is_alive:
            from tenonry_launcher_fork.preload import EngineImports

            executor, worker = plan.get("executor"), plan.get("worker")
            imports = EngineImports(executor=executor, worker=worker, model_text=engine.model_text)
            self._forks = start_fork_server(
                IMPORTS_ROLE,
                msgspec.json.encode(imports).decode(),
                has_own_servers=load_class(executor).starts_ranks,
            )
        return self._forks

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        super().shutdown(timeout)
        if self._forks is not None:
            self._forks.close()


def _can_fork(plan: PluginPlan) -> bool:
    """Return True if the worker runs in the engine's process or in children of it, and overrides `preload`."""
    executor = load_class(plan.get("executor"))
    worker = load_class(plan.get("worker"))
    owner = next(base for base in worker.__mro__ if "preload" in vars(base))
    is_here = executor.starts_ranks or not executor.runs_elsewhere
    return is_here and owner is not Worker
