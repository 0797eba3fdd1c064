"""The engines of one instance: launched, connected by a handshake, watched, added and removed. Front end or supervisor.

Each start has its own run directory for sockets, removed once all are connected, so that a crash leaves no file.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import ModelInfo
from tenonry.interfaces.coordination import FleetCompanion
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
from tenonry.launch.supervise import STOP_TIMEOUT_S, describe_exit
from tenonry.messages import ClientAddresses, CoordinatorFacts, EngineFacts, HandshakeMetadata
from tenonry.plugin.manager import build_coordination, build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry.transport.sockets import Context, Socket, endpoint, make_socket, tcp_address


class EngineFleet:
    """Starts engines and owns them. `on_death(engine index, death)` is called once for each that ends by itself, from
    any thread.

    `engines`: ready ones, of `size`; `dead`: those that ended by themselves, with the cause. `coordinated`: run a
    coordinator also for independent engines, as several front ends need one. `companion`: owner of auxiliary processes.
    `epochs`: numbers of starts, shared by fleets with engines of the same front ends. `places`: GPU set of each engine
    on this node. `lock`: held while an engine receives or loses its index. Raises ConfigError.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        plan: PluginPlan,
        on_death: Callable[[int, Death], None],
        epochs: Iterator[int],
        *,
        coordinated: bool = False,
    ) -> None:
        self.config = config
        self._model = model
        self._plan = plan
        self.on_death = on_death
        self.size = config.data_parallel_size
        self.engines: dict[int, EngineFacts] = {}
        self.dead: dict[int, Death] = {}
        self._indexes: dict[str, int] = {}  # by process name
        self.places: dict[int, int] = {}
        self.epochs = epochs
        self._closing = False
        self.is_cancelled = False  # the current start ends soon, with LaunchError
        self.lock = threading.RLock()
        self._starting = threading.Lock()  # held while engines are started
        self.launcher: Launcher = build_plugin(plan.get("launcher"), LauncherContext(config))
        self.launcher.on_exit(self._on_exit)
        host = self.launcher.host()
        self._host = host or config.data_parallel_address
        self._port = config.data_parallel_rpc_port  # of the first handshake
        num_local = config.data_parallel_size_local
        has_nodes = num_local is not None and num_local < config.data_parallel_size
        self.is_local = host is None and not has_nodes
        self.curve: CurveKeys | None = (
            None if self.is_local else _keys(config, is_launched=host is not None)
        )
        self.curve_keys = "" if self.curve is None else self.curve.encode()
        self._context: Context = zmq.Context()
        self.lockstep = model.needs_lockstep
        self.needs_coordinator = coordinated or self.lockstep
        self.companion = FleetCompanion()
        if self.needs_coordinator or has_nodes:
            coordination, self._coordination = build_coordination(config, plan)
            self.companion = coordination.fleet_companion(self)

    @property
    def coordinator(self) -> CoordinatorFacts | None:
        """The coordinator, while one runs."""
        endpoints = self.companion.endpoints
        return CoordinatorFacts(self._coordination, endpoints) if endpoints else None

    def change(self, config: EngineConfig, plan: PluginPlan) -> None:
        """Set the configuration and plan of engines started from now on."""
        self.config = config
        self._plan = plan

    # ------------------------------------------------------------------ start
    def run_directory(self) -> RunDirectory:
        """Return a folder for sockets; close it once all are connected. Raises LaunchError after `shutdown`."""
        self._check_open()
        return RunDirectory()

    def _check_open(self) -> None:
        if self._closing or self.is_cancelled:
            raise LaunchError("the engines were shut down while more were started")

    def address(self, directory: RunDirectory, port: int = 0) -> str:
        """Return an address to bind: a new file in the directory, or any free TCP port of this node."""
        return directory.address() if self.is_local else tcp_address(self._host, port)

    def prepare(self) -> None:
        """Start the launcher's preparation that is independent of the engine, if this node starts any."""
        if self.config.data_parallel_size_local != 0:
            self.launcher.prepare(self._spec(0, place=0, handshake_address=""))

    def start(self, indexes: Sequence[int], addresses: ClientAddresses) -> list[EngineFacts]:
        """Start engines, which connect to `addresses`; returns when they are ready.

        Raises LaunchError or ConfigError.
        """
        self.is_cancelled = False
        with self._starting, contextlib.closing(self.run_directory()) as directory:
            address = self.address(directory, self._port)
            socket = make_socket(self._context, zmq.ROUTER, address, bind=True, curve=self.curve)
            try:
                facts = self._start(socket, indexes, addresses)
            except BaseException:
                self.stop(indexes)
                socket.close()
                raise
            self._port = 0  # other nodes report to the first one
            self.companion.ready(socket)
            self.look_for_ends()
            return facts

    def _start(
        self, socket: Socket, indexes: Sequence[int], addresses: ClientAddresses
    ) -> list[EngineFacts]:
        epoch = next(self.epochs)
        self._indexes |= {engine_name(index): index for index in indexes}
        dead = [engine_name(index) for index in indexes if self.dead.pop(index, None)]
        self.launcher.stop(dead, 0.0 if self.companion.rendezvous else STOP_TIMEOUT_S)
        address = endpoint(socket)
        local = self.companion.start(indexes, address)
        if local:
            self.launcher.start([self._spec(index, self.place(index), address) for index in local])
        metadata = HandshakeMetadata(
            addresses=addresses,
            data_parallel_size=self.size,
            rendezvous=self.companion.rendezvous,
            epoch=epoch,
            coordinator=self.coordinator,
        )
        engines = [CoreEngine(index, index in local) for index in indexes]
        handshake = Handshake(socket, engines, metadata, self._plan, self.companion)
        facts = handshake.run(lambda: self._ended(indexes), self.config.start_timeout)
        check_alike([*self.engines.values(), *facts])
        self.engines |= {engine.index: engine for engine in facts}
        return facts

    def _ended(self, indexes: Sequence[int]) -> dict[str, int]:
        """Ended processes among those that a start awaits. Raises LaunchError for others, and after `shutdown`."""
        self._check_open()
        self.companion.check(indexes)
        names = {engine_name(index) for index in indexes}
        return {name: code for name, code in self.finished().items() if name in names}

    def _spec(self, index: int, place: int, handshake_address: str) -> EngineSpec:
        return EngineSpec(
            engine_index=index,
            local_rank=place,
            handshake_address=handshake_address,
            config_text=self.config.model_dump_json(),
            plan_text=self._plan.encode(),
            model_text=msgspec.json.encode(self._model).decode(),
            curve_keys=self.curve_keys,
        )

    def place(self, index: int) -> int:
        """GPU set of an engine: that of its number, unless a former spare engine brought its own to another number. A
        spare engine shares one if there are no others.
        """
        used = Counter(self.places.values())
        place = 0 if self.config.data_parallel_rank is not None else index
        if index >= FIRST_STANDBY or used[place]:
            place = min(range(num_places(self.config)), key=used.__getitem__)
        self.places[index] = place
        return place

    # ------------------------------------------------------------------ ends
    def finished(self) -> dict[str, int]:
        """Ended engines of this node: name → exit code (negative: the signal)."""
        return self.launcher.finished()

    def look_for_ends(self) -> None:
        """Report engines of this node that ended before they were registered under their names."""
        for name, code in self.finished().items():
            self._on_exit(name, 0, code)

    def pids(self) -> dict[str, int]:
        """Running processes: name → process id."""
        return self.launcher.pids() | self.companion.pids()

    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """Handle the end of a process. Called in a watcher's thread."""
        if name in self._indexes:  # otherwise another process has its name
            reason = f"{name} (pid {pid}) ended with {describe_exit(code)}"
            has_stepped = self.launcher.has_stepped(name)
            self.lost(self._indexes[name], Death(reason, has_stepped, exit_code=code))

    def lost(self, index: int, death: Death) -> None:
        """Record the death of an engine; the first one counts. From any thread. Engines that step together end
        together.

        A death with an epoch is that of the engine with this epoch.
        """
        if self._take(index, death) and self.companion.rendezvous:
            self.lost_together(death)

    def lost_together(self, death: Death) -> None:
        """End all engines, because they step together with the dead one."""
        for index in list(self.engines):
            reason = f"{death}, and engine {index} steps only together with it"
            self._take(index, Death(reason, lost_node=death.lost_node))

    def _take(self, index: int, death: Death) -> bool:
        """Remove a dead engine. False for one that is not ready: a start detects its end itself."""
        with self.lock:
            facts = self.engines.get(index)
            if self._closing or facts is None or death.epoch not in {0, facts.epoch}:
                return False
            death = msgspec.structs.replace(death, epoch=facts.epoch)
            self.dead[index] = death
            del self.engines[index]
            self.places.pop(index, None)
        self.on_death(index, death)
        return True

    def check_running(self, indexes: Iterable[int]) -> None:
        """Raise LaunchError for an engine that ended before it was used."""
        for index in indexes:
            if reason := self.dead.get(index):
                raise LaunchError(f"it ended before it was used: {reason}")

    def stop(self, indexes: Iterable[int], timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop engines permanently; `on_death` is not called for them."""
        leaving = list(indexes)
        for index in leaving:
            self.engines.pop(index, None)
            self.places.pop(index, None)
        self.companion.stop(leaving)
        self.launcher.stop([engine_name(index) for index in leaving], timeout)

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        # A concurrent start reads `_closing`, stops its processes and closes its sockets.
        if self._starting.acquire(timeout=timeout):
            self._starting.release()
        self.launcher.shutdown(timeout)
        self.companion.close()
        self._context.destroy(linger=0)


def _keys(config: EngineConfig, *, is_launched: bool) -> CurveKeys:
    """Keys of the key file shared by nodes; else new ones, for a launcher that starts the engines of all nodes."""
    if config.auth_key_file is not None:
        return read_keys(config.auth_key_file)
    if not is_launched:
        raise ConfigError(
            "engines on other nodes need shared keys: write them with `tenonry keys FILE`, copy the file, "
            "and give --auth-key-file FILE on every node"
        )
    return CurveKeys.generate()
