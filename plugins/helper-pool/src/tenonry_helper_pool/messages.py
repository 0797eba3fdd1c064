"""The messages between the owner of a pool and its helper processes. Both processes."""

from __future__ import annotations

import struct

import msgspec

FORK = b"f"
NO_FORK = b"-"
FORKED = struct.Struct("<i")  # process id of a fork, with its descriptor


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one job: `seconds` of processor time, `wall_s` by the clock (by default 15 times as much, since
    processor time passes slowly on a busy machine), `memory_bytes` beyond what a worker begins with, `stack_bytes` of
    its thread (0: the usual). `nice`: the priority of work that takes longer than `QUICK_S`.
    """

    seconds: float
    wall_s: float | None = None
    memory_bytes: int = 2 << 30
    stack_bytes: int = 0
    nice: int = 19

    @property
    def most_s(self) -> float:
        """Seconds by the clock after which a worker is ended."""
        return 15 * self.seconds if self.wall_s is None else self.wall_s


class Ready(msgspec.Struct, array_like=True):
    """The handler is built, or failed with `error`. `can_fork`: workers are forks of this process; else it is one."""

    facts: bytes = b""
    error: str = ""
    can_fork: bool = False
