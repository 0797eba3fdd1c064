"""Messages between engines, front ends and their coordinator. All three processes."""

from __future__ import annotations

import msgspec


class Endpoints(msgspec.Struct, frozen=True):
    """Addresses of the coordinator's sockets, for engines and front ends."""

    orders: str  # PUB: WaveStart, WaveVerdict
    reports: str  # PULL: EngineLoad, WaveStart, WaveSync
    loads: str  # PUB: LoadTable


class EngineLoad(msgspec.Struct, array_like=True, tag=True):
    """Engine to coordinator: the lengths of its queues, first when it connects and then when they changed."""

    engine_index: int
    num_running: int = 0
    num_waiting: int = 0


class WaveStart(msgspec.Struct, array_like=True, tag=True):
    """From a process with work for engines that pause: all engines but `exclude_index` step, in `wave`."""

    wave: int
    exclude_index: int = -1


class WaveSync(msgspec.Struct, array_like=True, tag=True):
    """Engine to coordinator: whether it has unfinished requests in this wave."""

    engine_index: int
    wave: int
    unfinished: bool


class WaveVerdict(msgspec.Struct, array_like=True, tag=True):
    """Coordinator to engines, once all have sent WaveSync: whether any of them has unfinished requests."""

    wave: int
    unfinished: bool


class LoadTable(msgspec.Struct, array_like=True):
    """Coordinator to front ends: [engine index, running, waiting] of each engine; the wave, and whether it
    runs, as engines that never pause always do.
    """

    loads: list[tuple[int, int, int]] = []
    wave: int = 0
    is_running: bool = False


CoordinatorInput = EngineLoad | WaveStart | WaveSync
CoordinatorOrder = WaveStart | WaveVerdict
