"""Servers with one engine each, whose engines step together (`--data-parallel-rank`). Front end.

The server of rank 0 leads: it owns the group as a first node owns the engines of headless ones, with the handshake, the
coordinator, and the end of all when one ends. A server of another rank joins: it starts its own engine for the leader's
handshake, and serves it alone. Each server sends requests to its own engine only; a balancer in front chooses.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from tenonry.client.core_client import CoreClient
from tenonry.client.engines import CONNECT_TIMEOUT_S, Engines, OwnedEngines
from tenonry.client.start import announce, engine_info, resolve_front_end
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, EngineGenerateError, LaunchError, Unsupported
from tenonry.interfaces.launcher import Death, Launcher, LauncherContext
from tenonry.interfaces.recovery import EngineEvents
from tenonry.launch.supervise import STOP_TIMEOUT_S, describe_exit
from tenonry.messages import CoordinatorFacts, EngineFacts
from tenonry.plugin.manager import PluginManager, build_plugin
from tenonry.plugin.plan import load_class
from tenonry.transport.folder import RunDirectory
from tenonry.transport.keys import read_keys
from tenonry.transport.sockets import tcp_address
from tenonry_scale_out.node import engine_specs
from tenonry_scale_out.relay import BY_RANK, HandshakeRelay
from tenonry_scale_out.reports import NodeReports

POLL_MS = 50
POLL_S = 0.005
LAST_WORDS_MS = 1000  # of an ended engine: its message is more informative than its exit status
# Calls that change nothing for the other engines of the group.
OWN_CALLS = frozenset(
    {
        "adapters.list_loras",
        "operations.is_held",
        "operations.is_sleeping",
        "operations.is_stepping",
        "request_counts",
        "reset_mm_cache",
        "reset_prefix_cache",
    }
)
OWN_WORKER_CALLS = frozenset({"model_facts"})


def engines_of_group(config: EngineConfig, context: str = "library") -> Engines:
    """The engines of a server of `data_parallel_rank`: those of the whole group for rank 0, else its own one.

    Raises ConfigError for what is missing.
    """
    check_group(config)
    return LeadingEngines(config, context) if leads(config) else JoinedEngines(config, context)


def leads(config: EngineConfig) -> bool:
    """Return True if this server is the one that the others join."""
    return config.data_parallel_rank == 0


def check_group(config: EngineConfig) -> None:
    """Raises ConfigError that names what is missing, or what does not go together."""
    rank = config.data_parallel_rank
    size = config.data_parallel_size
    if rank is not None and rank >= size:
        raise ConfigError(
            f"data_parallel_rank={rank}: the servers of data_parallel_size={size} have the ranks 0 to {size - 1}"
        )
    missing = config.auth_key_file is None or not config.data_parallel_rpc_port
    if missing or (leads(config) and not config.expert_rendezvous):
        raise ConfigError(
            "servers whose engines step together need --data-parallel-address and --data-parallel-rpc-port of the "
            "server of rank 0, and --auth-key-file; that server needs --expert-rendezvous, too"
        )
    if config.data_parallel_size_local not in (None, 1) or config.data_parallel_start_rank:
        raise ConfigError(
            f"data_parallel_rank={rank} is one engine of this server; leave out --data-parallel-size-local and "
            "--data-parallel-start-rank"
        )
    launcher = PluginManager(config.plugins).resolve("launcher", config.launcher, config)
    if not load_class(launcher).is_local:
        raise ConfigError(
            f"launcher={config.launcher.name} with data_parallel_rank={rank}: the engine of each server runs on its "
            "own node; leave out --launcher"
        )


class LeadingEngines(Engines):
    """All engines of the group, for the server of rank 0: its requests go to engine 0, its calls to all."""

    def __init__(self, config: EngineConfig, context: str = "library") -> None:
        # A death ends all servers, whatever reaction was chosen.
        given = config.model_dump(exclude_unset=True, exclude={"engine_death"})
        self._config = EngineConfig.model_validate(
            given
            | {
                "data_parallel_rank": None,
                "data_parallel_size_local": 1,
                "engine_recovery": "end",
                "expert_rendezvous": config.expert_rendezvous + BY_RANK,
            }
        )
        self._owned = OwnedEngines(self._config, context=context)
        self.plan = self._owned.plan
        self.model = self._owned.model
        self.stats = self._owned.stats
        self.client = self._owned.client

    def start(self, events: EngineEvents) -> None:
        """Return when the engines of all servers are ready. Raises LaunchError or ConfigError."""
        self.client.leaving.update(range(1, self._config.data_parallel_size))
        self._owned.start(events)
        self.info = self._owned.info

    def pids(self) -> dict[str, int]:
        return self._owned.pids()

    async def scale(self, size: int, drain_timeout: float) -> None:
        raise Unsupported(_fixed(self._config))

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        self._owned.shutdown(timeout)


class JoinedEngines(Engines):
    """The one engine of a server of rank 1 or above. It ends with the group, and the group with it."""

    _events: EngineEvents  # from `start` on

    def __init__(self, config: EngineConfig, context: str = "library") -> None:
        self._index = config.data_parallel_rank or 0
        self._config = config.replaced(
            data_parallel_rank=None,
            data_parallel_size_local=1,
            data_parallel_start_rank=self._index,
        )
        self._context = context
        self._manager, self.plan, self.model = resolve_front_end(self._config, launcher=True)
        self._keys = read_keys(config.auth_key_file or "")
        self._address = tcp_address(config.data_parallel_address, config.data_parallel_rpc_port)
        self._launcher: Launcher = build_plugin(
            self.plan.get("launcher"), LauncherContext(self._config)
        )
        self._launcher.on_exit(self._on_exit)
        self._lock = threading.Lock()
        self._dead = ""  # why the engine cannot serve
        self._is_serving = False
        self._is_closing = False
        self.reports = NodeReports(
            self._address, self._keys, lambda reason: self._lost(self._index, Death(reason))
        )
        self.stats = StatManager(self._config, self.plan)
        self.client = JoinedClient(self._config, self.plan, self._lost, self._keys)

    # ------------------------------------------------------------------ start
    def start(self, events: EngineEvents) -> None:
        """Return when the engines of all servers are ready. Raises LaunchError."""
        self._events = events
        self.reports.start()
        self._find_leader()
        with contextlib.closing(RunDirectory()) as directory:
            own = self.client.bind(directory.address(), directory.address())
            here = directory.address()
            relay = HandshakeRelay(here, self._address, self._index, self._keys, own)
            with contextlib.closing(relay):
                self._launcher.start(
                    engine_specs(
                        self._config, self.plan, self.model, [self._index], here, self._keys
                    )
                )
                facts = self._shake_hands(relay)
            self._connect(facts, relay.coordinator)
        self.info = engine_info(self._config, self.model, self.plan, [facts], self._context)
        self.stats.initialized(self.info)
        announce(self._manager, self.info)
        with self._lock:
            self._is_serving = True
        self._check()

    def _find_leader(self) -> None:
        deadline = time.monotonic() + self._config.start_timeout
        while not self.reports.is_heard:
            if time.monotonic() > deadline:
                raise LaunchError(
                    f"no answer from the server of rank 0 at {self._address} within {self._config.start_timeout:g} s; "
                    "start it, and compare address, port and keys"
                )
            time.sleep(POLL_S)
        self._check_open(self.reports.is_complete)

    def _shake_hands(self, relay: HandshakeRelay) -> EngineFacts:
        """Until the engines of all servers are ready."""
        while relay.facts is None or not self.reports.is_complete:
            is_complete = self.reports.is_complete
            relay.turn(POLL_MS)
            self._check_open(is_complete and relay.facts is None)
            if relay.is_answered:
                self.reports.engines = [self._index]
            if self._dead:
                relay.turn(LAST_WORDS_MS)
            self._check()
        return relay.facts

    def _connect(self, facts: EngineFacts, coordinator: CoordinatorFacts | None) -> None:
        self.client.expect([facts])
        self.client.take_over([facts.index], coordinator)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        while self.client.unconnected():
            self.client.receive()  # only the engine's first frames can come yet
            self._check()
            if time.monotonic() > deadline:
                raise LaunchError(f"engine {self._index} is ready but did not connect its sockets")
            time.sleep(POLL_S)

    def _check_open(self, is_complete: bool) -> None:
        """`is_complete`: the group is, without this engine."""
        if is_complete:
            raise LaunchError(
                f"the group of the server of rank 0 at {self._address} is complete: it has a server of "
                f"data_parallel_rank={self._index}; start a group anew, with another rank for each server"
            )

    def _check(self) -> None:
        if self._dead:
            raise LaunchError(self._dead)

    # ------------------------------------------------------------------ ends
    def _on_exit(self, name: str, pid: int, code: int) -> None:
        reason = f"{name} (pid {pid}) ended with {describe_exit(code)}"
        self._lost(self._index, Death(reason, self._launcher.has_stepped(name)))

    def _lost(self, index: int, death: Death) -> None:
        """The engine ended, or the group did; the first death counts. From any thread."""
        with self._lock:
            if self._dead or self._is_closing:
                return
            self._dead = str(death)
            is_serving = self._is_serving
        self.reports.ended(index, death)
        if is_serving:
            self._events.on_death(index, death)

    def pids(self) -> dict[str, int]:
        return self._launcher.pids()

    async def scale(self, size: int, drain_timeout: float) -> None:
        raise Unsupported(_fixed(self._config))

    def shutdown(self, timeout: float = STOP_TIMEOUT_S) -> None:
        with self._lock:
            self._is_closing = True
        self._launcher.shutdown(timeout)
        self.reports.ended(self._index, Death(f"engine {self._index} was stopped"))
        self.reports.close()
        self.client.close()
        self.stats.shutdown()


class JoinedClient(CoreClient):
    """Calls its engine only for operations without effect on the others, which a call of one engine would not reach."""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Raises EngineGenerateError, too, for a call that the leader has to make."""
        if method == "operations.release":  # `hold` is refused, so there is nothing to release
            return []
        is_own = method in OWN_CALLS
        if method == "call_workers":
            is_own = args[0] in OWN_WORKER_CALLS
        if not is_own:
            raise EngineGenerateError(
                f"'{method}' is refused here: this server has one of several engines that step together, and sleep, "
                "pauses that keep requests, profiles, weights and calls of workers are for all of them; ask the server "
                "of data_parallel_rank=0"
            )
        return await super().call(method, *args, **kwargs)


def _fixed(config: EngineConfig) -> str:
    return f"the engines of {config.data_parallel_size} servers step together; their number is fixed while they run"
