"""Coordination: choice of the engine, load reports and common steps where there are several engines. Its parts run with
the owner of the engines, in each engine and in each front end.

A single engine with one front end needs none. A single front end with independent engines has a router alone; several
front ends, engines that step together and other nodes need the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import Death, EngineSpec
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.messages import EngineCoreRequest, HandshakeMetadata
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket

NODE_IDENTITY = b"node "  # how the identities of nodes begin on the socket of the handshake


class CoordinatedEngine(Protocol):
    """The engine of a companion. `num_passes`: steps with tokens to compute so far."""

    num_passes: int

    def has_work(self) -> bool: ...

    def request_counts(self) -> tuple[int, int]:
        """Running and waiting requests."""
        ...

    def call_workers(self, method: str) -> Any: ...


class EngineCompanion(ABC):
    """Work of one engine among several besides its loop, which calls the methods. Engine process.

    `index`: number of the engine, which changes when a standby takes another's place. `must_step`: the engine steps
    even without requests. `socket`: wakes the loop, so that it calls `receive`.
    """

    index: int
    must_step: bool = False
    socket: Socket

    @abstractmethod
    def receive(self, starts: bool) -> None:
        """Follow the orders that have arrived. Without `starts` the engine sleeps, and no common steps begin."""

    @abstractmethod
    def on_request(self, tag: int = 0) -> None:
        """A request with this tag of its router arrived, or a message that may have been one."""

    @abstractmethod
    def on_step(self, engine: CoordinatedEngine) -> None:
        """A step ended, or none was possible while `must_step` was set."""

    @abstractmethod
    def on_send(self, engine: CoordinatedEngine) -> None:
        """Outputs were sent, or the engine is idle. Called once before the first step, too."""


class RequestRouter(ABC):
    """Chooses the engine of each request of one front end. Event loop; no method blocks.

    `tag`: number that the next request carries to the companion of its engine.
    """

    tag: int = 0

    @abstractmethod
    def connect(self, endpoints: str) -> None:
        """A coordinator is ready at these endpoints. Called for each start of engines that have one."""

    @abstractmethod
    def pick(
        self,
        request: EngineCoreRequest,
        candidates: Sequence[int],
        num_requests: Callable[[int], int],
    ) -> int:
        """Return one of the candidates, which ascend and are never empty.

        `num_requests(index)`: requests of this front end on that engine. Raises EngineGenerateError or RequestError.
        """

    @abstractmethod
    def sent(self, index: int) -> None:
        """A request was sent to this engine."""

    @abstractmethod
    def close(self) -> None:
        """Close the sockets. Idempotent."""


class NodeWatch(ABC):
    """Nodes that start engines for a front end elsewhere: their reports, and orders to them. Owner of the engines.

    `ended`: engines that ended since they were ordered last, and why. `is_running`: `start` has been called.
    """

    ended: dict[int, Death]
    is_running: bool = False

    @abstractmethod
    def receive(self, socket: Socket, frames: list[bytes]) -> str:
        """Read a report that arrived during a handshake. Returns why engines of that node ended, or nothing."""

    @abstractmethod
    def start(self, socket: Socket) -> None:
        """Receive reports on the socket of the handshake from now on: the first engines are ready."""

    @abstractmethod
    def order(
        self, indexes: Iterable[int], address: str = "", config: EngineConfig | None = None
    ) -> None:
        """Stop engines, and start them for the handshake at `address`, if there is one. From any thread.

        Raises LaunchError if a node that should start one is gone.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop receiving. Idempotent."""


class Coordination(Plugin[PluginContext], ABC):
    """Creates the parts of a coordinated group, each in the process that needs it."""

    @abstractmethod
    def start(
        self,
        start_process: Callable[..., object],
        address: str,
        *,
        lockstep: bool,
        curve_keys: str,
        timeout: float,
    ) -> str:
        """Start the coordinator's process, `start_process(role, payload, pass_fds=…)`, and wait until it is ready.

        It binds at `address`, which may be a file or a free TCP port. `lockstep`: the engines step together.
        Returns the endpoints for companions and routers, as text. Raises LaunchError after `timeout` seconds.
        """

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

        `keeps_waiting()` is False once the engine ends; called at least once a second while the companion waits.
        Raises ConfigError for a worker that cannot work so, LaunchError without a coordinator.
        """

    @abstractmethod
    def router(
        self, context: Context, curve: CurveKeys | None, index: int, num_front_ends: int
    ) -> RequestRouter:
        """Return the router of front end `index`, of `num_front_ends`. Raises PluginError."""

    @abstractmethod
    def watch_nodes(
        self, on_death: Callable[[int, Death], None], on_return: Callable[[int, Death], None]
    ) -> NodeWatch:
        """Return the watch over nodes. `on_death(engine index, death)` is called for an engine that ended, and
        `on_return` for each engine of a node that was started again; both from any thread.
        """
