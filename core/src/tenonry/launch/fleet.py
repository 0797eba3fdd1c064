"""The engines of one instance: launched, connected by a handshake, watched, added and removed. Front end or supervisor.

Each start has a run directory of its own for its sockets, which is removed once all are connected, so that a crash
leaves no file behind.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import ModelInfo
from tenonry.interfaces.coordination import NodeWatch
from tenonry.interfaces.launcher import (
    FIRST_STANDBY,
    Death,
    EngineSpec,
    Launcher,
    LauncherContext,
    engine_name,
)
from tenonry.launch.devices import num_places
from tenonry.launch.handshake import CoreEngine, Handshake, check_alike
from tenonry.launch.supervise import STOP_TIMEOUT_S, Supervisor, describe_exit
from tenonry.messages import CoordinatorFacts, EngineFacts, EngineZmqAddresses, HandshakeMetadata
from tenonry.plugin.manager import build_coordination, build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry.transport.sockets import Context, Socket, endpoint, make_socket, tcp_address

logger = logging.getLogger(__name__)
COORDINATOR = "coordinator"
FORMER = "former "  # before the name of a process whose place another one took


class EngineFleet:
    """Starts engines and owns them. `on_death(engine index, death)` is called once for each that ends by itself,
    from any thread.

    `engines`: ready ones, of `size`; `dead`: those that ended by themselves, and why. `coordinated`: run a coordinator,
    for several front ends or for lockstep. `before`: a fleet with these keys, epochs and size. Raises ConfigError.
    """

    COORDINATOR = -1

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        plan: PluginPlan,
        on_death: Callable[[int, Death], None],
        *,
        coordinated: bool = False,
        before: EngineFleet | None = None,
    ) -> None:
        self._config = config
        self._model = model
        self._plan = plan
        self._on_death = on_death
        self.size: int = before.size if before else config.data_parallel_size
        self.engines: dict[int, EngineFacts] = {}
        self.dead: dict[int, Death] = {}
        self._indexes = {COORDINATOR: self.COORDINATOR}  # by name of the process
        self._places: dict[int, int] = {}  # of the GPUs of this node, by engine
        self.remote: set[int] = set()  # engines that another node started
        self.coordinator: CoordinatorFacts | None = None
        self._rendezvous = ""  # of engines that step together
        self._has_independent = False  # engines that do not, and may be started again
        self.epochs: Iterator[int] = before.epochs if before else itertools.count(1)
        self._closing = False
        self.is_cancelled = False  # the start that is under way ends soon, and raises LaunchError
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # held while engines are started
        self._coordinator_files = contextlib.ExitStack()
        self._launcher: Launcher = build_plugin(plan.get("launcher"), LauncherContext(config))
        self._helpers = Supervisor()
        self._helpers.on_exit(self._on_exit)
        self._launcher.on_exit(self._on_exit)
        host = self._launcher.host()
        num_local = config.data_parallel_size_local
        self._num_local = math.inf if num_local is None else num_local
        self._is_coordinated = coordinated or model.needs_lockstep
        self._nodes: NodeWatch | None = None
        has_nodes = self._num_local < config.data_parallel_size
        if self._is_coordinated or has_nodes:
            self._coordination = build_coordination(config, plan)
        if has_nodes:
            self._nodes = self._coordination[0].watch_nodes(self._lost_there, self._returned)
        self.is_local = host is None and not has_nodes
        self._host = host or config.data_parallel_address
        keys = None if self.is_local or before else _keys(config, is_launched=host is not None)
        self.curve: CurveKeys | None = before.curve if before else keys
        self._curve_text = "" if self.curve is None else self.curve.encode()
        self._context: Context = zmq.Context()

    @property
    def supports_replacement(self) -> bool:
        """True if the launcher lets engines take the names of others."""
        return self._launcher.supports_replacement

    def change(self, config: EngineConfig, plan: PluginPlan) -> None:
        """Engines that are started from now on get these."""
        self._config = config
        self._plan = plan

    # ------------------------------------------------------------------ start
    def run_directory(self) -> RunDirectory:
        """A folder for sockets; close it once all are connected. Raises LaunchError after `shutdown`."""
        self._check_open()
        return RunDirectory()

    def _check_open(self) -> None:
        if self._closing or self.is_cancelled:
            raise LaunchError("the engines were shut down while more were started")

    def address(self, directory: RunDirectory, port: int = 0) -> str:
        """Return an address to bind: a new file in the directory, or any free TCP port of this node."""
        return directory.address() if self.is_local else tcp_address(self._host, port)

    def prepare(self) -> None:
        """Let the launcher begin what does not depend on the engine, if this node is to start any."""
        if self._num_local:
            self._launcher.prepare(self._spec(0, place=0, handshake_address=""))

    def start(self, indexes: Sequence[int], addresses: EngineZmqAddresses) -> list[EngineFacts]:
        """Start engines, which connect to `addresses`, and return when they are ready.

        Raises LaunchError or ConfigError.
        """
        self.is_cancelled = False
        with self._starting, contextlib.closing(self.run_directory()) as directory:
            port = 0 if self._is_running else self._config.data_parallel_rpc_port
            socket = make_socket(
                self._context,
                zmq.ROUTER,
                self.address(directory, port),
                bind=True,
                curve=self.curve,
            )
            try:
                facts = self._start(socket, indexes, addresses)
            except BaseException:
                self.stop(indexes)
                socket.close()
                raise
            # One may have ended just now, before its end counted as that of a running engine.
            for name, code in self.finished().items():
                self._on_exit(name, 0, code)
            return facts

    def _start(
        self, socket: Socket, indexes: Sequence[int], addresses: EngineZmqAddresses
    ) -> list[EngineFacts]:
        epoch = next(self.epochs)
        self._indexes |= {engine_name(index): index for index in indexes}
        dead = [engine_name(index) for index in indexes if self.dead.pop(index, None)]
        self._launcher.stop(dead, 0.0 if self._rendezvous else STOP_TIMEOUT_S)
        if self._rendezvous:
            self._end_coordinator()
        # Engines that join a running instance are always started by this node.
        num_local = math.inf if self._is_running else self._num_local
        engines = [
            CoreEngine(index, place < num_local and index not in self.remote)
            for place, index in enumerate(indexes)
        ]
        local = [engine for engine in engines if engine.local]
        remote = [engine.index for engine in engines if not engine.local]
        if self._is_coordinated and self.coordinator is None:
            self.coordinator = self._start_coordinator()
        address = endpoint(socket)
        if self._nodes and self._is_running and remote:
            self._nodes.order(remote, address, self._config)
        if local:
            specs = [self._spec(each.index, self._place(each.index), address) for each in local]
            self._launcher.start(specs)
        facts = self._run_handshake(socket, engines, addresses, epoch)
        check_alike([*self.engines.values(), *facts])
        self.engines |= {engine.index: engine for engine in facts}
        self._has_independent = not self._rendezvous
        self.remote.update(remote)
        if self._nodes and remote and not self._nodes.is_running:
            self._nodes.start(socket)
        else:
            socket.close()
        return facts

    @property
    def _is_running(self) -> bool:
        """True if the first engines have started, as far as that matters to later ones."""
        return bool(self.engines or (self._nodes and self._nodes.is_running))

    def _run_handshake(
        self, socket: Socket, engines: list[CoreEngine], addresses: EngineZmqAddresses, epoch: int
    ) -> list[EngineFacts]:
        metadata = HandshakeMetadata(
            addresses=addresses,
            data_parallel_size=self.size,
            rendezvous=self._rendezvous,
            epoch=epoch,
            coordinator=None if self.COORDINATOR in self.dead else self.coordinator,
        )
        handshake = Handshake(socket, engines, metadata, self._plan, self._nodes)
        return handshake.run(lambda: self._ended(engines), self._config.start_timeout)

    def _ended(self, engines: Sequence[CoreEngine]) -> dict[str, int]:
        """Processes that a start waits for and that ended. LaunchError for one of a node, and after `shutdown`."""
        self._check_open()
        for engine in engines:
            if self._nodes and engine.index in self._nodes.ended:
                raise LaunchError(str(self._nodes.ended[engine.index]))
        names = {engine_name(engine.index) for engine in engines}
        return {
            name: code
            for name, code in self.finished().items()
            if name in names or (name == COORDINATOR and self.COORDINATOR not in self.dead)
        }

    def _start_coordinator(self) -> CoordinatorFacts:
        """Engines that join later connect to it as well, so its directory stays until it ends."""
        closing = contextlib.closing(self.run_directory())
        directory = self._coordinator_files.enter_context(closing)
        if self._model.needs_lockstep:
            self._rendezvous = self._config.expert_rendezvous or f"file://{directory.path}/experts"
        launch = functools.partial(self._helpers.start, COORDINATOR, removes=directory.path)
        coordination, plugin = self._coordination
        endpoints = coordination.start(
            launch,
            self.address(directory),
            lockstep=self._model.needs_lockstep,
            curve_keys=self._curve_text,
            timeout=self._config.start_timeout,
        )
        return CoordinatorFacts(plugin, endpoints)

    def _end_coordinator(self) -> None:
        """Engines that step together come back with another one, and meet elsewhere."""
        self._helpers.stop_some([COORDINATOR], 0.0)
        self._coordinator_files.close()
        self.dead.pop(self.COORDINATOR, None)
        self.coordinator = None

    def _spec(self, index: int, place: int, handshake_address: str) -> EngineSpec:
        return EngineSpec(
            engine_index=index,
            local_rank=place,
            handshake_address=handshake_address,
            config_text=self._config.model_dump_json(),
            plan_text=self._plan.encode(),
            model_text=msgspec.json.encode(self._model).decode(),
            curve_keys=self._curve_text,
        )

    def _place(self, index: int) -> int:
        """An engine has the GPUs of its number, unless one that stood by took them along to another number. One that
        stands by shares some where there are no others.
        """
        used = Counter(self._places.values())
        place = 0 if self._config.data_parallel_rank is not None else index
        if index >= FIRST_STANDBY or used[place]:
            place = min(range(num_places(self._config)), key=lambda each: (used[each], each))
        self._places[index] = place
        return place

    # ------------------------------------------------------------------ standbys
    def promote(self, standby: int, index: int) -> EngineFacts:
        """An engine that stood by is this one from now on, in place of one that died. Raises LaunchError."""
        self._launcher.rename(engine_name(index), FORMER + engine_name(index))
        with self._lock:
            facts = self.engines.pop(standby, None)
            if facts is None:
                raise LaunchError(f"{engine_name(standby)} has just ended")
            self._launcher.rename(engine_name(standby), engine_name(index))
            facts = msgspec.structs.replace(facts, index=index, epoch=next(self.epochs))
            self._places[index] = self._places.pop(standby)
            self.engines[index] = facts
            self.dead.pop(index, None)
        # It may have ended while it still had the other name.
        for name, code in self.finished().items():
            self._on_exit(name, 0, code)
        return facts

    def stop_former(self, index: int) -> None:
        """Wait for the process of the engine that was this one before."""
        self._launcher.stop([FORMER + engine_name(index)])

    # ------------------------------------------------------------------ ends
    def finished(self) -> dict[str, int]:
        """Processes that ended: name → exit code (negative: the signal)."""
        return self._launcher.finished() | self._helpers.finished()

    def pids(self) -> dict[str, int]:
        """Processes that run: name → process id."""
        return self._launcher.pids() | self._helpers.pids()

    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """A process has ended. Called in a watcher's thread."""
        if name in self._indexes:  # else another process took its place
            reason = f"{name} (pid {pid}) ended with {describe_exit(code)}"
            has_stepped = self._launcher.has_stepped(name)
            self.lost(self._indexes[name], Death(reason, has_stepped, exit_code=code))

    def _lost_there(self, index: int, death: Death) -> None:
        """A node says so, also of an engine that this one has started in its place."""
        if index in self.remote:
            self.lost(index, death)

    def _returned(self, index: int, death: Death) -> None:
        """The node of an engine was started again, which may have been given up."""
        if index in self.engines:
            self._lost_there(index, death)
        elif index in self.remote and not self._rendezvous:
            self._on_death(index, death)

    def lost(self, index: int, death: Death) -> None:
        """An engine is dead; the first death counts. From any thread. Engines that step together end together."""
        with self._lock:
            # While the first engines start, or all that step together, `_ended` looks for processes that are gone.
            if self._closing or not (self.engines or self._has_independent):
                return
            if index in self.dead or index not in {*self.engines, self.COORDINATOR}:
                return
            self.dead[index] = death
            self.engines.pop(index, None)
            self._places.pop(index, None)
        if index != self.COORDINATOR:
            self._on_death(index, death)
        elif not self._rendezvous:
            self._coordinator_files.close()
            logger.error(
                "%s; requests are still served, but front ends know only their own load", death
            )
        if self._rendezvous:
            for other in list(self.engines):
                reason = f"{death}, and engine {other} steps only together with it"
                self.lost(other, Death(reason, lost_node=death.lost_node))

    def stop(self, indexes: Iterable[int], timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop engines for good; `on_death` is not called for them."""
        leaving = list(indexes)
        for index in leaving:
            self.engines.pop(index, None)
            self._places.pop(index, None)
        if self._nodes:
            self._nodes.order(self.remote.intersection(leaving))
        self._launcher.stop([engine_name(index) for index in leaving], timeout)

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        # A start that is under way sees `_closing`, stops what it started and closes its sockets.
        if self._starting.acquire(timeout=timeout):
            self._starting.release()
        if self._nodes:
            self._nodes.close()
        self._launcher.shutdown(timeout)
        self._helpers.stop(timeout)
        self._coordinator_files.close()
        self._context.destroy(linger=0)


def _keys(config: EngineConfig, *, is_launched: bool) -> CurveKeys:
    """Keys of the key file, which nodes share; else new ones, for a launcher that starts the engines of all nodes."""
    if config.auth_key_file is not None:
        return read_keys(config.auth_key_file)
    if not is_launched:
        raise ConfigError(
            "engines on other nodes need keys that all nodes know: write them with `tenonry keys FILE`, copy the file, "
            "and give --auth-key-file FILE on every node"
        )
    return CurveKeys.generate()
