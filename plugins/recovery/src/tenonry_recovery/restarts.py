"""Starts engines again that died, within a budget. The event loop of their owner, front end or supervisor."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from tenonry.interfaces.launcher import Death
from tenonry.stats import RecoveryStats
from tenonry_recovery.budget import RestartBudget

logger = logging.getLogger("tenonry.recovery")
POLL_S = 0.005
RETRY_S = 0.5  # after a start that failed
# Approximate time for streams to resume in other engines; a start would take processors from them.
HEAD_START_S = 0.3


class Served(Protocol):
    """Those who wait for the engines. `divergence`: why an engine that is started now would not be as it was."""

    @property
    def is_over(self) -> bool: ...

    @property
    def serves(self) -> bool: ...

    def has(self, index: int) -> bool: ...

    async def divergence(self) -> Collection[str]: ...

    async def restart(self, indexes: Sequence[int]) -> None: ...

    async def admit(self, indexes: Sequence[int]) -> None: ...

    def note(self, index: int, numbers: RecoveryStats) -> None: ...

    def give_up(self, index: int, reason: str) -> None: ...


class Restarts:
    """`served.restart` starts engines, and returns when they can be used; then they are admitted. `lock` is held
    meanwhile. Where others serve, it is called a moment later. An engine that is not restarted is given up.
    `num_together`: engines that step together die, and are restarted or given up, together. `num_at_once()`: how many
    need no start, and need not wait for others that do; or 0.
    """

    def __init__(
        self,
        served: Served,
        lock: asyncio.Lock,
        budget: RestartBudget | None = None,
        num_together: int = 1,
        num_at_once: Callable[[], int] = lambda: 0,
    ) -> None:
        self._served = served
        self._lock = lock
        self._num_at_once = num_at_once
        self.num_together = num_together
        self._is_group_over = False
        self.budget = budget or RestartBudget()
        self._due: set[int] = set()
        self._deaths: dict[int, tuple[float, Death]] = {}  # and when
        self._task: asyncio.Task[None] | None = None

    def on_death(self, index: int, death: Death) -> None:
        """An engine is gone."""
        self._served.note(index, RecoveryStats(deaths=1))
        self._deaths[index] = (time.monotonic(), death)
        self._start_or_end(index)
        if self._due and self._task is None:
            self._task = asyncio.ensure_future(self._work())

    def _start_or_end(self, index: int, failure: str = "") -> None:
        number = 0 if self._is_group_over else self.budget.take(index, time.monotonic())
        if not number:
            text = failure or f"it restarted {self.budget}"
            self._end(index, text)
            return
        logger.warning(
            "restarting engine %d (attempt %d of %d within %g s)%s",
            index,
            number,
            self.budget.max_restarts,
            self.budget.window_s,
            failure and f": {failure}",
        )
        self._due.add(index)

    def _end(self, index: int, why: str) -> None:
        """Give one engine up, with all that step together with it."""
        _, death = self._deaths.pop(index)
        self._due.discard(index)
        self.budget.given_up(index)
        self._is_group_over = self.num_together > 1
        self._served.give_up(index, f"{death}; {why}")
        if self._is_group_over:
            for other in list(self._due):
                self._end(other, why)

    async def _work(self) -> None:
        try:
            async with self._lock:
                if self._served.serves and not self._num_at_once():
                    await asyncio.sleep(HEAD_START_S)
                has_failed = False
                while self._due and not self._served.is_over:
                    if len(self._due) < self.num_together:
                        await asyncio.sleep(POLL_S)
                        continue
                    # One that cannot be started stops the others no longer.
                    num_at_once = self.num_together if has_failed else self._num_at_once()
                    indexes = sorted(self._due)[: num_at_once or None]
                    self._due.difference_update(indexes)
                    has_failed |= not await self._bring_back(indexes)
        except Exception as error:
            logger.exception("the recovery failed")
            while self._deaths:
                self._end(min(self._deaths), f"the recovery failed: {error}")
        finally:
            self._task = None

    async def _bring_back(self, indexes: Sequence[int]) -> bool:
        # `scale` may have started some in the interval.
        missing = [index for index in indexes if not self._served.has(index)]
        if missing and (obstacles := await self._served.divergence()):
            for index in missing:
                self._end(index, f"it is not restarted: {', '.join(sorted(obstacles))}")
            self._due.update(set(indexes) - set(missing))
            return False
        try:
            if missing:
                await self._served.restart(missing)
        except Exception as error:  # noqa: BLE001 - it is tried again, or ends the engines
            if not self._served.is_over:  # else all are being shut down
                await asyncio.sleep(RETRY_S)
                for index in missing:
                    if index not in self._due and index in self._deaths:  # else it died since
                        self.budget.failed(index)
                        self._start_or_end(index, f"it could not be started: {error}")
            self._due.update(set(indexes) - set(missing))
            return False
        for index in indexes:
            died, _ = self._deaths[index]
            self.budget.served(index)
            silence_s = time.monotonic() - died
            self._served.note(index, RecoveryStats(restarts=1, silence_s=silence_s))
            logger.warning("engine %d serves again after %.1f s", index, silence_s)
        await self._served.admit(indexes)
        return True
