"""The top process of a node that has engines and no front end (`--headless`): starts, reports and stops them."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket as sockets
import threading
import time
from collections.abc import Sequence

import msgspec
import zmq

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import Death, EngineSpec, Launcher, LauncherContext, engine_name
from tenonry.interfaces.recovery import EngineRecovery
from tenonry.launch.supervise import STOP_SIGNAL, STOP_TIMEOUT_S, describe_exit
from tenonry.logs import configure_logging
from tenonry.plugin.manager import PluginManager, build_plugin
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.transport.keys import CurveKeys, read_keys
from tenonry.transport.sockets import make_socket, tcp_address
from tenonry_scale_out.nodes import (
    ALIVE,
    NODE_IDENTITY,
    READY,
    REPORT_EVERY_S,
    SILENCE_S,
    NodeOrder,
    NodeReport,
    plugins_of,
)

logger = logging.getLogger("tenonry.node")
SLICE_S = 0.1  # how long an order or a death may wait
DEAD_STOP_S = 1.0  # for what is left of an engine that is started again


def run_headless(config: EngineConfig) -> int:
    """Run this node's engines for a front end on another node; returns the exit status: 0 only after a signal.

    Raises ConfigError for what is missing, and whatever resolving plugins and model raises.
    """
    from setproctitle import setproctitle

    manager = PluginManager(config.plugins)
    plan = manager.plan(config, launcher=True)
    node = HeadlessNode(config, plan, manager.resolve_model(config))
    recovery: type[EngineRecovery] = load_class(plan.get("engine_recovery"))
    for fallback in recovery.alternatives(config, manager):
        node.offer(fallback, manager.plan(fallback))
    setproctitle("tenonry: node")
    configure_logging("node")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # `nohup` ignores SIGHUP, and that stays
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: node.stop(may_abort=number != signal.SIGHUP))
    return node.run()


def engine_specs(
    config: EngineConfig,
    plan: PluginPlan,
    model: ModelInfo,
    engines: Sequence[int],
    address: str,
    keys: CurveKeys,
) -> list[EngineSpec]:
    """Engines for a launcher of this node: they belong to the first node, whose handshake is at `address`."""
    return [
        EngineSpec(
            engine_index=index,
            local_rank=rank,
            handshake_address=address,
            config_text=config.model_dump_json(),
            plan_text=plan.encode(),
            model_text=msgspec.json.encode(model).decode(),
            local=False,
            curve_keys=keys.encode(),
        )
        for rank, index in enumerate(engines)
    ]


class HeadlessNode:
    """Engines from `data_parallel_start_rank` on, `data_parallel_size_local` of them.

    One that dies once all have been ready is started again when the front end says so. So are all of them, if this node
    is started when the others run already.
    """

    def __init__(self, config: EngineConfig, plan: PluginPlan, model: ModelInfo) -> None:
        first = config.data_parallel_start_rank
        count = config.data_parallel_size_local
        if not count or not config.data_parallel_rpc_port or config.auth_key_file is None:
            raise ConfigError(
                "--headless needs --data-parallel-size-local (how many engines run here), --data-parallel-address and "
                "--data-parallel-rpc-port of the first node, and --auth-key-file"
            )
        if first + count > config.data_parallel_size:
            raise ConfigError(
                f"data_parallel_start_rank={first} and data_parallel_size_local={count} go beyond "
                f"data_parallel_size={config.data_parallel_size}"
            )
        self._curve = read_keys(config.auth_key_file)
        self._address = tcp_address(config.data_parallel_address, config.data_parallel_rpc_port)
        self._engines = list(range(first, first + count))
        self._model = model
        self._first = plugins_of(config)
        self._specs: dict[str, list[EngineSpec]] = {}  # by their plugins
        self.offer(config, plan)
        recovery: type[EngineRecovery] = load_class(plan.get("engine_recovery"))
        self._restarts = recovery.restarts(config)
        self._is_complete = False  # the engines of all nodes have been ready
        self._number = 0  # of the last order
        self._process = time.time_ns()
        self._failed: dict[int, Death] = {}  # engines that could not be started
        self._launcher: Launcher = build_plugin(plan.get("launcher"), LauncherContext(config))
        self._launcher.on_exit(lambda *_: self._wakeups.put(None))
        self._start_timeout = config.start_timeout
        self._stop_timeout = config.shutdown_timeout + STOP_TIMEOUT_S
        self._stopping = False
        self._aborting = False
        # a signal handler may put into a SimpleQueue, whatever it interrupts
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def offer(self, config: EngineConfig, plan: PluginPlan) -> None:
        """The front end may ask for engines of this configuration, by its plugins."""
        self._specs[plugins_of(config)] = engine_specs(
            config, plan, self._model, self._engines, self._address, self._curve
        )

    def stop(self, *, may_abort: bool = True) -> None:
        """First call: finish what runs; second, if it may: abort it. Safe in a signal handler."""
        self._aborting |= may_abort and self._stopping
        self._stopping = True
        self._wakeups.put(None)

    def run(self) -> int:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        identity = f"{sockets.gethostname()}{self._engines[0]}".encode()
        socket = make_socket(
            context,
            zmq.DEALER,
            self._address,
            bind=False,
            identity=NODE_IDENTITY + identity,
            curve=self._curve,
        )
        try:
            if not self._joins_others(socket):
                self._launcher.start(self._specs[self._first])
            self._report_until_the_end(socket)
        except LaunchError as error:
            logger.error("%s", error)  # noqa: TRY400 - the message names the cause
            return 1
        finally:
            self._stop_engines(socket)
            ended = {index: Death(f"engine {index} was stopped") for index in self._engines}
            self._engines = []  # none can be started here any more
            self._report(socket, ended)
            context.destroy(linger=1000)
        return 0

    def _joins_others(self, socket: zmq.Socket[bytes]) -> bool:
        """Return True if all nodes' engines were ready before. Raises LaunchError then if restarts are disabled."""
        self._report(socket, {})
        if socket.poll(round(REPORT_EVERY_S * 1000)):
            self._receive(socket)
        if self._is_complete and not self._restarts:
            raise LaunchError(
                f"the other engines of {self._address} run already, and with --engine-death stop none restarts; "
                "restart the first node as well"
            )
        if self._is_complete:
            logger.warning("the other engines already run; joining engines %s", self._engines)
        return self._is_complete

    def _stop_engines(self, socket: zmq.Socket[bytes]) -> None:
        """Let running requests finish, while reporting that this node is alive. A second signal aborts them."""
        timeout = self._stop_timeout if self._stopping else STOP_TIMEOUT_S
        ender = threading.Thread(target=self._launcher.shutdown, args=(timeout,))
        ender.start()
        while ender.is_alive():
            self._report(socket, {})
            ender.join(REPORT_EVERY_S)
            if self._aborting:
                self._aborting = False
                for pid in self._launcher.pids().values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, STOP_SIGNAL)

    def _report(self, socket: zmq.Socket[bytes], ended: dict[int, Death]) -> None:
        report = NodeReport(
            sockets.gethostname(), self._engines, ended, self._number, self._process
        )
        socket.send(msgspec.msgpack.encode(report))

    def _report_until_the_end(self, socket: zmq.Socket[bytes]) -> None:
        """Raises LaunchError when an engine has ended that is not started again, or the front end is silent."""
        last_received = time.monotonic()
        max_silence_s = self._start_timeout
        while not self._stopping:
            ended = self._ended()
            self._report(socket, ended)
            is_answered = socket.poll(round(REPORT_EVERY_S * 1000))
            if is_answered:
                self._receive(socket)
            if ended and not (self._restarts and self._is_complete):
                raise LaunchError("; ".join(map(str, ended.values())))
            if is_answered:
                last_received = time.monotonic()
                max_silence_s = SILENCE_S
                self._pause(socket)
            elif time.monotonic() > last_received + max_silence_s:
                raise LaunchError(
                    f"the front end at {self._address} has been silent for {max_silence_s:.0f} s"
                )

    def _ended(self) -> dict[int, Death]:
        exits = self._launcher.finished()
        deaths = dict(self._failed)
        for index in set(self._engines) - set(deaths):
            name = engine_name(index)
            if name in exits:
                reason = f"{name} ended with {describe_exit(exits[name])}"
                deaths[index] = Death(reason, self._launcher.has_stepped(name))
        return deaths

    def _pause(self, socket: zmq.Socket[bytes]) -> None:
        """Until the next report is due: after a second, or because an engine ended, or this node is to stop."""
        due = time.monotonic() + REPORT_EVERY_S
        while time.monotonic() < due:
            if socket.poll(0):
                self._receive(socket)
            with contextlib.suppress(queue.Empty):
                self._wakeups.get(timeout=min(SLICE_S, REPORT_EVERY_S))
                return

    def _receive(self, socket: zmq.Socket[bytes]) -> None:
        """Answers to reports, and orders."""
        while socket.poll(0):
            frame = socket.recv()
            if frame == READY:
                self._is_complete = True
            elif frame != ALIVE:
                self._follow(msgspec.msgpack.decode(frame, type=NodeOrder))

    def _follow(self, order: NodeOrder) -> None:
        self._number = order.number
        self._failed = {
            index: why for index, why in self._failed.items() if index not in order.engines
        }
        self._launcher.stop([f"engine {index}" for index in order.engines], DEAD_STOP_S)
        if not order.address:
            return
        logger.warning("restarting engines %s", order.engines)
        try:
            self._launcher.start(self._ordered_specs(order))
        except LaunchError as error:
            self._failed |= {index: Death(f"engine {index}: {error}") for index in order.engines}

    def _ordered_specs(self, order: NodeOrder) -> list[EngineSpec]:
        """Raises LaunchError for plugins that this node does not know."""
        if order.plugins not in self._specs:
            raise LaunchError(
                f"the front end requires engines with {order.plugins}, this node has "
                f"{'; '.join(self._specs)}; give both "
                "nodes the same flags"
            )
        return [
            msgspec.structs.replace(spec, handshake_address=order.address)
            for spec in self._specs[order.plugins]
            if spec.engine_index in order.engines
        ]
