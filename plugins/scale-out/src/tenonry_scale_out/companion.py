"""The companion of a fleet: its coordinator's process and its engines on other nodes. Owner of the engines."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from socket import socketpair

from tenonry.errors import LaunchError
from tenonry.interfaces.coordination import CoordinatedFleet, FleetCompanion
from tenonry.interfaces.launcher import Death
from tenonry.launch.supervise import Supervisor, describe_exit
from tenonry.transport.sockets import Socket
from tenonry_scale_out.nodes import NODE_IDENTITY, HeadlessNodes

logger = logging.getLogger("tenonry.scale_out")
COORDINATOR = "coordinator"
COORDINATOR_ROLE = "tenonry_scale_out.coordinator:run_coordinator"
ANSWER_BYTES = 4096


class ScaledFleet(FleetCompanion):
    """Starts the coordinator before the engines, and lets other nodes start those that are not of this one.

    Engines in lockstep come back with another coordinator, and meet elsewhere. Independent ones serve on without it.
    """

    def __init__(self, fleet: CoordinatedFleet) -> None:
        super().__init__()
        self._fleet = fleet
        self._supervisor = Supervisor()
        self._supervisor.on_exit(self._on_exit)
        self._files = contextlib.ExitStack()  # of the coordinator
        self._has_coordinator = False
        self._has_started = False  # the first engines of the fleet
        self._joining: list[int] = []  # engines that other nodes start now
        self._nodes: HeadlessNodes | None = None
        self._num_local = fleet.config.data_parallel_size_local
        if self._num_local is not None and self._num_local < fleet.config.data_parallel_size:
            self._nodes = HeadlessNodes(self._lost_there, self._returned)

    # ------------------------------------------------------------------ start
    def start(self, indexes: Sequence[int], address: str) -> Sequence[int]:
        if self.rendezvous:
            self._supervisor.stop_some([COORDINATOR], 0.0)
            self._files.close()
            self._has_coordinator = False
        if self._fleet.needs_coordinator and not self._has_coordinator:
            self._start_coordinator()
        local = [index for place, index in enumerate(indexes) if self._is_local(place, index)]
        self._joining = [index for index in indexes if index not in local]
        if self._nodes and self._nodes.is_running and self._joining:
            self._nodes.order(self._joining, address, self._fleet.config)
        return local

    def _is_local(self, place: int, index: int) -> bool:
        """Engines that join a running instance are started by this node, unless they came from another one."""
        num_local = None if self._has_started else self._num_local
        return index not in self.remote and (num_local is None or place < num_local)

    def _start_coordinator(self) -> None:
        """Engines that join later connect to it as well, so its directory stays until it ends."""
        fleet = self._fleet
        directory = self._files.enter_context(contextlib.closing(fleet.run_directory()))
        if fleet.lockstep:
            url = fleet.config.expert_rendezvous
            self.rendezvous = url or f"file://{directory.path}/experts"
        self._has_coordinator = True
        self.endpoints = start_coordinator(
            self._supervisor,
            {
                "address": fleet.address(directory),
                "lockstep": "yes" if fleet.lockstep else "",
                "curve_keys": fleet.curve_keys,
            },
            removes=directory.path,
            timeout=fleet.config.start_timeout,
        )

    def receive(self, socket: Socket, frames: list[bytes]) -> None:
        if self._nodes is None or not frames[0].startswith(NODE_IDENTITY):
            super().receive(socket, frames)
        elif ended := self._nodes.receive(socket, frames):
            raise LaunchError(f"{ended}, before it was ready")

    def check(self, indexes: Sequence[int]) -> None:
        code = self._supervisor.finished().get(COORDINATOR)
        if code is not None:
            raise LaunchError(
                f"the coordinator ended with {describe_exit(code)} while engines started; see "
                f"its log lines"
            )
        for index in indexes:
            if self._nodes and index in self._nodes.ended:
                raise LaunchError(str(self._nodes.ended[index]))

    def ready(self, socket: Socket) -> None:
        self._has_started = True
        self.remote.update(self._joining)
        if self._nodes and self._joining and not self._nodes.is_running:
            self._nodes.start(socket)
        else:
            socket.close()
        # It may have ended just now, while no engine was ready.
        for name, code in self._supervisor.finished().items():
            self._on_exit(name, 0, code)

    # ------------------------------------------------------------------ ends
    def _on_exit(self, name: str, pid: int, code: int) -> None:
        """The coordinator has ended. Called in a watcher's thread; while engines start `check` finds it."""
        reason = f"{name} (pid {pid}) ended with {describe_exit(code)}"
        if self.rendezvous:
            self._fleet.lost_together(Death(reason))
        elif self._has_started:
            self.endpoints = ""
            self._supervisor.stop_some([COORDINATOR])
            self._files.close()
            text = "%s; requests are still served, but front ends know only their own load"
            logger.error(text, reason)

    def _lost_there(self, index: int, death: Death) -> None:
        """A node reports it, also for an engine that this one has started instead."""
        if index in self.remote:
            self._fleet.lost(index, death)

    def _returned(self, index: int, death: Death) -> None:
        """The node of an engine was started again, which may have been given up."""
        if index in self._fleet.engines:
            self._lost_there(index, death)
        elif index in self.remote and not self.rendezvous:
            self._fleet.on_death(index, death)

    def stop(self, indexes: Iterable[int]) -> None:
        if self._nodes:
            self._nodes.order(self.remote.intersection(indexes))

    def pids(self) -> dict[str, int]:
        return self._supervisor.pids()

    def close(self) -> None:
        if self._nodes:
            self._nodes.close()
        self._supervisor.stop()
        self._files.close()


def start_coordinator(
    supervisor: Supervisor,
    payload: dict[str, str],
    *,
    removes: str,
    timeout: float,
    role: str = COORDINATOR_ROLE,
) -> str:
    """Start the coordinator's process; returns its endpoints, as text, once it is ready.

    It binds at `payload["address"]`, which may be a file or a free TCP port. Raises LaunchError if it ends, or after
    `timeout` seconds.
    """
    ours, theirs = socketpair()
    with ours:
        with theirs:  # then only the child holds it, so `recv` returns when the child ends
            number = theirs.fileno()
            payload = {**payload, "answer": str(number)}
            supervisor.start(COORDINATOR, role, payload, pass_fds=[number], removes=removes)
        ours.settimeout(timeout)
        with contextlib.suppress(TimeoutError):
            if answer := ours.recv(ANSWER_BYTES):
                return answer.decode()
    raise LaunchError("the coordinator did not start; see its log lines")
