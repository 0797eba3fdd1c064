"""The coordination `scale-out`: creates the coordinator's process, and its ends in engines and front ends."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from socket import socketpair

from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.interfaces.coordination import Coordination, EngineCompanion, NodeWatch, RequestRouter
from tenonry.interfaces.launcher import Death, EngineSpec
from tenonry.messages import HandshakeMetadata
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context
from tenonry_scale_out.load_balancer import check_load_balancer
from tenonry_scale_out.nodes import HeadlessNodes
from tenonry_scale_out.router import BalancedRouter
from tenonry_scale_out.waves import WaveCompanion

COORDINATOR_ROLE = "tenonry_scale_out.coordinator:run_coordinator"
ANSWER_BYTES = 4096


class WaveCoordination(Coordination):
    """One process receives the loads of all engines, publishes them, and decides when engines in lockstep pause."""

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        check_load_balancer(config.load_balancer, config)

    def start(
        self,
        start_process: Callable[..., object],
        address: str,
        *,
        lockstep: bool,
        curve_keys: str,
        timeout: float,
    ) -> str:
        ours, theirs = socketpair()
        payload = {
            "address": address,
            "answer": str(theirs.fileno()),
            "lockstep": "yes" if lockstep else "",
            "curve_keys": curve_keys,
        }
        with ours:
            with theirs:  # then only the child holds it, so `recv` returns when the child ends
                start_process(COORDINATOR_ROLE, payload, pass_fds=[theirs.fileno()])
            ours.settimeout(timeout)
            with contextlib.suppress(TimeoutError):
                if answer := ours.recv(ANSWER_BYTES):
                    return answer.decode()
        raise LaunchError("the coordinator did not start; its own log lines say why")

    def companion(
        self,
        context: Context,
        spec: EngineSpec,
        metadata: HandshakeMetadata,
        config: EngineConfig,
        keeps_waiting: Callable[[], bool],
    ) -> EngineCompanion:
        return WaveCompanion(context, spec, metadata, config, keeps_waiting)

    def router(
        self, context: Context, curve: CurveKeys | None, index: int, num_front_ends: int
    ) -> RequestRouter:
        return BalancedRouter(self.context.config, context, curve, index, num_front_ends)

    def watch_nodes(
        self, on_death: Callable[[int, Death], None], on_return: Callable[[int, Death], None]
    ) -> NodeWatch:
        return HeadlessNodes(on_death, on_return)
