"""The engines of one instance: launched, shaken hands with, watched, added and removed. Front end or supervisor.

Sockets meet in *rounds*: each start has a folder of its own for them, which is removed once all are connected, so that
a crash leaves no file behind.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from socket import socketpair

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import EngineSpec, Launcher, LauncherContext
from tenonry.launch.handshake import CoreEngine, Handshake
from tenonry.launch.nodes import NodeWatch
from tenonry.launch.supervise import STOP_TIMEOUT_S, Supervisor, describe_exit
from tenonry.messages import EngineFacts, EngineZmqAddresses, HandshakeMetadata
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry.transport.sockets import endpoint, make_socket, tcp_address

logger = logging.getLogger(__name__)
COORDINATOR = "coordinator"
COORDINATOR_ROLE = "tenonry.engine.coordinator:run_coordinator"
ANSWER_BYTES = 4096


class EngineFleet:
    """Starts engines and owns them. `on_death(engine index, reason)` is called once for each that ends unasked, from
    any thread.

    `engines` are those that are ready; `dead` those that ended unasked, with the reason. `coordinated`: run a
    coordinator, which several front ends and models that need lockstep have to have.
    """

    COORDINATOR = -1

    def __init__(
        self,
        config: EngineConfig,
        model: ModelInfo,
        plan: PluginPlan,
        on_death: Callable[[int, str], None],
        *,
        coordinated: bool = False,
    ) -> None:
        self._config, self._model, self._plan, self._on_death = config, model, plan, on_death
        self.engines: dict[int, EngineFacts] = {}
        self.dead: dict[int, str] = {}
        self.remote: set[int] = set()  # engines that another node started
        self.coordinator: EngineZmqAddresses | None = None
        self._epoch, self._closing, self._lock = 0, False, threading.Lock()
        self._starting = threading.Lock()  # held while engines are started
        self._launcher: Launcher = build_plugin(plan.get("launcher"), LauncherContext(config))
        self._helpers = Supervisor()
        self._helpers.on_exit(self._on_exit)
        self._launcher.on_exit(self._on_exit)
        local = config.data_parallel_size_local
        self.is_local = self._launcher.host() is None and (
            local is None or local >= config.data_parallel_size
        )
        self._host = self._launcher.host() or config.data_parallel_address
        self.curve = None if self.is_local else _keys(config)
        self._coordinated = coordinated or model.needs_lockstep
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._nodes = NodeWatch(self.lost)

    # ------------------------------------------------------------------ rounds
    def meeting(self) -> RunDirectory:
        """A folder for the sockets of one round; close it once all are connected. Raises LaunchError after the end."""
        self._check_open()
        return RunDirectory()

    def _check_open(self) -> None:
        if self._closing:
            raise LaunchError("the engines were shut down while more were started")

    def address(self, meeting: RunDirectory, port: int = 0) -> str:
        """Where a socket may bind: a new file of the meeting, or any free TCP port of this node."""
        return meeting.address() if self.is_local else tcp_address(self._host, port)

    def start(self, indexes: Sequence[int], addresses: EngineZmqAddresses) -> list[EngineFacts]:
        """Start engines, which connect to `addresses`, and return when they are ready.

        Raises LaunchError or ConfigError.
        """
        with self._starting, contextlib.closing(self.meeting()) as meeting:
            address = self.address(
                meeting, 0 if self.engines else self._config.data_parallel_rpc_port
            )
            socket = make_socket(self._context, zmq.ROUTER, address, bind=True, curve=self.curve)
            try:
                self._epoch += 1
                self.stop([index for index in indexes if self.dead.pop(index, None)])
                local = (
                    None if self.engines else self._config.data_parallel_size_local
                )  # who joins is started here
                engines = [
                    CoreEngine(index, local is None or place < local)
                    for place, index in enumerate(indexes)
                ]
                specs = [
                    self._spec(engine.index, endpoint(socket)) for engine in engines if engine.local
                ]
                if self._coordinated and self.coordinator is None:
                    self.coordinator = self._start_coordinator()
                self._launcher.start(specs)
                facts = self._run_handshake(socket, engines, addresses)
                check_alike([*self.engines.values(), *facts])
            except BaseException:
                self.stop(indexes)
                socket.close()
                raise
            self.engines |= {one.index: one for one in facts}
            self.remote |= {engine.index for engine in engines if not engine.local}
            if all(engine.local for engine in engines):
                socket.close()
            else:
                self._nodes.start(socket)
            for (
                name,
                code,
            ) in (
                self.finished().items()
            ):  # one may have ended just now, when nobody took it for an engine
                self._on_exit(name, 0, code)
            return facts

    def _run_handshake(
        self, socket: zmq.Socket[bytes], engines: list[CoreEngine], addresses: EngineZmqAddresses
    ) -> list[EngineFacts]:
        if self.coordinator is not None and self.COORDINATOR not in self.dead:
            addresses = msgspec.structs.replace(
                self.coordinator, inputs=addresses.inputs, outputs=addresses.outputs
            )
        size = max(self._config.data_parallel_size, len(self.engines) + len(engines))
        metadata = HandshakeMetadata(
            addresses=addresses,
            parallel_config={
                "data_parallel_size": size,
                "lockstep": int(self._model.needs_lockstep),
            },
            epoch=self._epoch,
        )
        handshake = Handshake(socket, engines, metadata, self._plan, self._nodes)
        return handshake.run(lambda: self._ended(engines), self._config.start_timeout)

    def _ended(self, engines: Sequence[CoreEngine]) -> dict[str, int]:
        """Processes that a start waits for and that are gone. Raises LaunchError if nobody waits any more."""
        self._check_open()
        names = {f"engine {engine.index}" for engine in engines}
        return {
            name: code
            for name, code in self.finished().items()
            if name in names or (name == COORDINATOR and self.COORDINATOR not in self.dead)
        }

    def _start_coordinator(self) -> EngineZmqAddresses:
        """Its sockets are found by engines that come later, too: their folder is removed when it ends."""
        self._coordinator_meeting = meeting = self.meeting()
        ours, theirs = socketpair()
        payload = {
            "address": self.address(meeting),
            "answer": str(theirs.fileno()),
            "lockstep": "yes" if self._model.needs_lockstep else "",
            "curve_keys": "" if self.curve is None else self.curve.encode(),
        }
        with ours:
            with theirs:  # from then on only the child has it: if it ends, `recv` does
                self._helpers.start(
                    COORDINATOR,
                    COORDINATOR_ROLE,
                    payload,
                    pass_fds=[theirs.fileno()],
                    removes=meeting.path,
                )
            ours.settimeout(self._config.start_timeout)
            with contextlib.suppress(TimeoutError):
                if answer := ours.recv(ANSWER_BYTES):
                    return msgspec.json.decode(answer, type=EngineZmqAddresses)
        raise LaunchError("the coordinator did not start; its own log lines say why")

    def _spec(self, index: int, handshake_address: str) -> EngineSpec:
        return EngineSpec(
            engine_index=index,
            local_rank=0 if self._config.data_parallel_rank is not None else index,
            handshake_address=handshake_address,
            config_text=self._config.model_dump_json(),
            plan_text=self._plan.encode(),
            model_text=msgspec.json.encode(self._model).decode(),
            curve_keys="" if self.curve is None else self.curve.encode(),
        )

    # ------------------------------------------------------------------ ends
    def finished(self) -> dict[str, int]:
        """Processes that ended: name → exit code (negative: the signal)."""
        return {**self._launcher.finished(), **self._helpers.finished()}

    def pids(self) -> dict[str, int]:
        """Processes that run: name → process id."""
        return {**self._launcher.pids(), **self._helpers.pids()}

    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """A watcher's thread: a process is gone."""
        index = (
            int(name.removeprefix("engine ")) if name.startswith("engine ") else self.COORDINATOR
        )
        self.lost(index, f"{name} (pid {pid}) ended with {describe_exit(code)}")

    def lost(self, index: int, reason: str) -> None:
        """An engine is gone; the first reason counts. From any thread. Engines that step together go together."""
        with self._lock:
            # While the first ones start there are none yet, and `_ended` looks.
            if (
                self._closing
                or not self.engines
                or index not in {*self.engines, self.COORDINATOR} - {*self.dead}
            ):
                return
            self.dead[index] = reason
        self.engines.pop(index, None)
        if index != self.COORDINATOR:
            self._on_death(index, reason)
        elif not self._model.needs_lockstep:
            self._coordinator_meeting.close()
            logger.error(
                "%s; requests are still served, but front ends know only of their own load", reason
            )
        if self._model.needs_lockstep:
            for other in list(self.engines):
                self.lost(other, f"{reason}, and engine {other} steps only together with it")

    def stop(self, indexes: Iterable[int], timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop engines that nobody needs any more."""
        leaving = list(indexes)
        for index in leaving:
            self.engines.pop(index, None)
        self._launcher.stop([f"engine {index}" for index in leaving], timeout)

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        """Stop everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        if self._starting.acquire(
            timeout=timeout
        ):  # a start sees it, stops what it started and leaves the sockets
            self._starting.release()
        self._nodes.close()
        self._launcher.shutdown(timeout)
        self._helpers.stop(timeout)
        if self.coordinator is not None:
            self._coordinator_meeting.close()
        self._context.destroy(linger=0)


def check_alike(engines: Sequence[EngineFacts]) -> None:
    """A request must fit any engine alike. Raises ConfigError that names two that differ."""
    first = engines[0]
    for other in engines[1:]:
        for name in ("block_size", "max_model_len"):
            one, two = getattr(first, name), getattr(other, name)
            if one != two:
                raise ConfigError(
                    f"engine {first.index} has {name} {one}, engine {other.index} has {two}; give "
                    f"--{name.replace('_', '-')} {min(one, two)} to all"
                )


def _keys(config: EngineConfig) -> CurveKeys:
    """Those of the key file, which nodes share; else new ones, which a launcher hands to its engines."""
    if config.auth_key_file is not None:
        return read_keys(config.auth_key_file)
    if config.launcher.name == "process":
        raise ConfigError(
            "engines on other nodes need keys that all nodes know: write them with `tenonry keys FILE`, copy the file, "
            "and give --auth-key-file FILE on every node"
        )
    return CurveKeys.generate()
