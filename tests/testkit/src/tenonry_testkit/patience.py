"""Time limits of the harness without progress. Test process.

A stuck scheduler is detected by counting empty steps: its clock is virtual, so that takes no time. A transfer of a KV
connector may run on a thread or in another process, and is timed by the wall clock.
"""

from __future__ import annotations

import time

STEPS = 60  # empty steps, one virtual second apart, until a scheduler counts as stuck
EAGER_POLLS = 8  # steps without a pause, for connectors whose transfers take a number of steps
FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02
TRANSFER_S = 5.0  # wall clock
AFTER_A_FAILURE_S = 1.0  # hypothesis repeats a failing example to shrink it


class Patience:
    """Counts turns without progress; `transfer_s` is the wall-clock bound during a transfer."""

    def __init__(self, transfer_s: float = TRANSFER_S) -> None:
        self._transfer_s = transfer_s
        self.reset()

    def reset(self) -> None:
        """Reset after progress."""
        self.idle_turns = 0
        self._waiting_since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def waited_s(self) -> float:
        """Wall-clock seconds since the harness began to wait for a transfer."""
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since

    def wait(self, *, transferring: bool) -> float:
        """Count a turn without progress; returns the seconds by which to advance the virtual clock.

        `transferring`: a transfer is the reason; this then sleeps briefly, except at the beginning of the wait.
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
        """Return True at the limit. After the first time, waits for transfers are shorter."""
        if not transferring:
            return self.idle_turns >= STEPS
        over = self.waited_s > self._transfer_s
        if over:
            self._transfer_s = min(self._transfer_s, AFTER_A_FAILURE_S)
        return over
