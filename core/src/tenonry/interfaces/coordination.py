"""Coordination: choice of the engine, load reports and common steps where there are several engines. Its parts run with
the owner of the engines, in each engine and in each front end.

A single engine with one front end needs none. A single front end with independent engines has a router alone; several
front ends, engines that step together and other nodes need the rest.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import Death, EngineSpec
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.messages import EngineCoreRequest, EngineFacts, HandshakeMetadata
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket

logger = logging.getLogger(__name__)


class CoordinatedEngine(Protocol):
    """The engine of a companion. `num_passes`: steps with tokens to compute so far."""

    num_passes: int

    def has_work(self) -> bool: ...

    def request_counts(self) -> tuple[int, int]:
        """Running and waiting requests."""
        ...

    def call_workers(self, method: str) -> Any: ...


class EngineCompanion:
    """Coordination of one engine among several; its loop calls the methods. Engine process.

    The class itself is for an engine without a coordinator. `index`: number of the engine, which changes when a standby
    takes another's place. `must_step`: the engine steps even without requests. `socket`: wakes the loop, so that it
    calls `receive`.
    """

    index: int = 0
    must_step: bool = False
    socket: Socket | None = None

    def receive(self, starts: bool) -> None:
        """Handle the messages that have arrived. Without `starts` the engine sleeps, and no common steps begin."""

    def on_request(self, tag: int = 0) -> None:
        """A request with this tag of its router arrived, or a message that may have been one."""

    def on_step(self, engine: CoordinatedEngine) -> None:
        """Handle the end of a step, or its absence while `must_step` was set."""

    def on_send(self, engine: CoordinatedEngine) -> None:
        """Handle sent outputs, or an idle engine. Called once before the first step, too."""


class RequestRouter:
    """Chooses the engine of each request of one front end. Event loop; no method blocks.

    The class itself is for a single engine. `tag`: number that the next request carries to the companion of its engine.
    """

    tag: int = 0

    def connect(self, endpoints: str) -> None:
        """Connect to a coordinator. Called for each start of engines that have one."""

    def pick(
        self,
        request: EngineCoreRequest,
        candidates: Sequence[int],
        num_requests: Callable[[int], int],
    ) -> int:
        """Return one of the candidates, which ascend and are never empty.

        `num_requests(index)`: requests of this front end on that engine. Raises EngineGenerateError or RequestError.
        """
        return candidates[0]

    def sent(self, index: int) -> None:
        """Record a request sent to this engine."""

    def close(self) -> None:
        """Close the sockets. Idempotent."""


class CoordinatedFleet(Protocol):
    """The fleet of a companion. `engines`: those that are ready. `needs_coordinator`: for several front ends, or for
    engines that step together (`lockstep`).
    """

    config: EngineConfig
    engines: dict[int, EngineFacts]
    lockstep: bool
    needs_coordinator: bool
    curve_keys: str

    def run_directory(self) -> RunDirectory: ...

    def address(self, directory: RunDirectory) -> str:
        """Address to bind for engines of this fleet: a file in the directory, or a free TCP port."""
        ...

    def on_death(self, index: int, death: Death) -> None:
        """Handle the death of an engine that is not ready; it may be restarted."""

    def lost(self, index: int, death: Death) -> None:
        """Report the death of an engine. From any thread; ignored if it is not ready."""

    def lost_together(self, death: Death) -> None:
        """End all engines, because they step together with the dead one."""


class FleetCompanion:
    """Starts and watches auxiliary processes of one fleet. Owner of the engines; called from any thread.

    The class itself is for engines of this node that nothing connects. `endpoints`: the coordinator's, as text for
    companions of engines and routers; empty without one. `rendezvous`: URL for engines that step together; empty for
    others. `remote`: engines started by other nodes.
    """

    endpoints: str = ""
    rendezvous: str = ""

    def __init__(self) -> None:
        self.remote: set[int] = set()

    def start(self, indexes: Sequence[int], address: str) -> Sequence[int]:
        """Prepare the start of engines with their handshake at `address`; returns those to start on this node.

        Raises LaunchError.
        """
        return indexes

    def receive(self, socket: Socket, frames: list[bytes]) -> None:
        """Handle a handshake message from a sender other than an engine. Raises LaunchError if it ends the start."""
        logger.warning("ignored a message from an unknown peer")

    def check(self, indexes: Sequence[int]) -> None:
        """Raise LaunchError if one of these starting engines cannot become ready."""

    def ready(self, socket: Socket) -> None:
        """Report that the engines are ready; the socket of their handshake is closed, or used for reports."""
        socket.close()

    def stop(self, indexes: Iterable[int]) -> None:
        """Stop engines permanently."""

    def pids(self) -> dict[str, int]:
        """Running processes: name → process id."""
        return {}

    def close(self) -> None:
        """Stop everything. Idempotent."""


class Coordination(Plugin[PluginContext], ABC):
    """Creates the parts of a coordinated group, each in the process that needs it."""

    @abstractmethod
    def fleet_companion(self, fleet: CoordinatedFleet) -> FleetCompanion:
        """Return the companion of a fleet. Its methods are called later; nothing is started yet."""

    @abstractmethod
    def companion(
        self,
        context: Context,
        spec: EngineSpec,
        metadata: HandshakeMetadata,
        config: EngineConfig,
        keeps_waiting: Callable[[], bool],
    ) -> EngineCompanion:
        """Return the companion of the engine of `spec`, before its model is loaded.

        `keeps_waiting()` is False once the engine ends; called at least once a second while the companion waits. Raises
        ConfigError for an unsupported worker, LaunchError without a coordinator.
        """

    @abstractmethod
    def router(
        self, context: Context, curve: CurveKeys | None, index: int, num_front_ends: int
    ) -> RequestRouter:
        """Return the router of front end `index`, of `num_front_ends`. Raises PluginError."""
