"""The launcher `ray`: engines as Ray actors, on this node and on others. Front end; Ray is imported when it is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext
from tenonry.launch.supervise import STOP_TIMEOUT_S
from tenonry_executor_ray.options import RayLauncherOptions

if TYPE_CHECKING:
    from tenonry_executor_ray.fleet import Fleet


class RayLauncher(Launcher):
    """One actor per engine, in a separate placement group; the engine is the actor's child process."""

    Options = RayLauncherOptions
    is_local = False

    def __init__(self, context: LauncherContext) -> None:
        super().__init__(context)
        self._fleet: Fleet | None = None

    def _connected(self) -> Fleet:
        if self._fleet is None:
            from tenonry_executor_ray.fleet import Fleet

            options = self.context.options
            if not isinstance(options, RayLauncherOptions):
                options = RayLauncherOptions()
            self._fleet = Fleet(self.context.config, options)
        return self._fleet

    def host(self) -> str:
        return self._connected().host

    def start(self, engines: list[EngineSpec]) -> None:
        """Start the engines. Raises ConfigError when the cluster has no room, LaunchError for a node that has other
        versions or none of our packages.
        """
        self._connected().start(engines)

    def stop(self, names: Sequence[str], timeout: float = STOP_TIMEOUT_S) -> None:
        if self._fleet is not None:
            self._fleet.stop(names, timeout)

    def finished(self) -> dict[str, int]:
        if self._fleet is None:
            return {}
        return self._fleet.finished()

    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        self._connected().on_exit(callback)

    def pids(self) -> dict[str, int]:
        """Process ids on the engines' own nodes."""
        if self._fleet is None:
            return {}
        return self._fleet.pids()

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        fleet = self._fleet
        self._fleet = None
        if fleet is not None:
            fleet.close(timeout)
