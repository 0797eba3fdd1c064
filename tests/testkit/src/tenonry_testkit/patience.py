"""Time limits of the harness without progress. Test process.

A stuck scheduler is detected by counting empty steps: its clock is virtual, so that takes no time. A transfer of a KV
connector may run on a thread or in another process, and is timed by the wall clock.
"""

from __future__ import annotations

import time

STEPS = 60  # empty steps, a virtual second apart, before a scheduler counts as stuck
EAGER_POLLS = 8  # steps without a pause, for connectors whose transfers take a number of steps
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
TRANSFER_S = 5.0  # wall clock
AFTER_A_FAILURE_S = 1.0  # hypothesis repeats a failing example to make it smaller


class Patience:
    """Counts turns without progress; `transfer_s` is the wall-clock bound while a transfer is under way."""

    def __init__(self, transfer_s: float = TRANSFER_S) -> None:
        self._transfer_s = transfer_s
        self.reset()

    def reset(self) -> None:
        """Something moved."""
        self.idle_turns = 0
        self._waiting_since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def waited_s(self) -> float:
        """Seconds of wall clock since the harness began to wait for a transfer."""
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    def wait(self, *, transferring: bool) -> float:
        """A turn without progress has passed; returns by how many seconds to advance the virtual clock.

        `transferring`: the reason is a transfer, for which this sleeps a little, unless the wait has just begun.
        """
        self.idle_turns += 1
        if not transferring:
            return 1.0
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if self.idle_turns <= EAGER_POLLS:
            return 0.0
        pause_s = self._pause_s
        time.sleep(pause_s)
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s

    def is_over(self, *, transferring: bool) -> bool:
        """Return True to give up. After the first time, waits for transfers are shorter."""
        if not transferring:
            return self.idle_turns >= STEPS
        over = self.waited_s > self._transfer_s
        if over:
            self._transfer_s = min(self._transfer_s, AFTER_A_FAILURE_S)
        return over
