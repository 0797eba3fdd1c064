"""The coordination `scale-out`: creates its parts for owners of engines, engines and front ends."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.interfaces.coordination import (
    CoordinatedFleet,
    Coordination,
    EngineCompanion,
    FleetCompanion,
    RequestRouter,
)
from tenonry.interfaces.launcher import EngineSpec
from tenonry.messages import HandshakeMetadata
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context
from tenonry_scale_out.companion import ScaledFleet
from tenonry_scale_out.load_balancer import check_load_balancer
from tenonry_scale_out.router import BalancedRouter
from tenonry_scale_out.waves import WaveCompanion


class WaveCoordination(Coordination):
    """One process receives the loads of all engines, publishes them, and decides when engines in lockstep pause."""

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        check_load_balancer(config.load_balancer, config)

    def fleet_companion(self, fleet: CoordinatedFleet) -> FleetCompanion:
        return ScaledFleet(fleet)

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
