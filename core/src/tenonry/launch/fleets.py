"""The fleets of one owner: one, but two while its engines are replaced by those of another. Front end or supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import Death
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.plugin.plan import PluginPlan


class Fleets:
    """Engines belong to `current`, but those in `owners`, which changes under `lock`. `successor`: the fleet that is to
    be `current` once it has all of them.

    `on_death(engine index, death)`: as of `EngineFleet`, for engines that have their place.
    """

    current: EngineFleet

    def __init__(
        self, model: ModelInfo, on_death: Callable[[int, Death], None], *, coordinated: bool
    ) -> None:
        self._model = model
        self._on_death = on_death
        self.coordinated = coordinated
        self.successor: EngineFleet | None = None
        self.owners: dict[int, EngineFleet] = {}
        self.lock = threading.RLock()

    def make(
        self, config: EngineConfig, plan: PluginPlan, before: EngineFleet | None = None
    ) -> EngineFleet:
        """Another one, without engines, beside the one before."""
        made = EngineFleet(
            config,
            self._model,
            plan,
            lambda index, death: self._died(made, index, death),
            coordinated=self.coordinated,
            before=before,
        )
        return made

    def succeed(self, fleet: EngineFleet) -> EngineFleet:
        """All engines are of this fleet; returns the one before."""
        with self.lock:
            before = self.current
            self.current = fleet
            self.owners.clear()
        return before

    def owner(self, index: int) -> EngineFleet:
        """The fleet of an engine."""
        return self.owners.get(index, self.current)

    def _died(self, fleet: EngineFleet, index: int, death: Death) -> None:
        """From any thread. An engine that has no place yet is nobody's loss."""
        with self.lock:
            if self.owner(index) is fleet:
                self._on_death(index, death)

    def lost(self, index: int, death: Death) -> None:
        """An engine says that it ends."""
        self.owner(index).lost(index, death)

    def engines(self) -> dict[int, EngineFacts]:
        """Those that are ready, by index."""
        found = dict(self.current.engines)
        for index, fleet in list(self.owners.items()):
            found.pop(index, None)
            if index in fleet.engines:
                found[index] = fleet.engines[index]
        return found

    def pids(self) -> dict[str, int]:
        """Processes that run: name → process id."""
        found = self.current.pids()
        for index, fleet in list(self.owners.items()):
            name = f"engine {index}"
            found.pop(name, None)
            pids = fleet.pids()
            if name in pids:
                found[name] = pids[name]
        return found

    def stop(self, indexes: Iterable[int]) -> None:
        """Stop engines for good."""
        for index in indexes:
            self.owner(index).stop([index])

    def shutdown(self, timeout: float) -> None:
        """Stop everything. Idempotent."""
        for fleet in {self.current, self.successor, *self.owners.values()}:
            if fleet is not None:
                fleet.shutdown(timeout)
