"""Transfers of KV connectors with several ranks: one outcome of all reports. Engine process; for executors."""

from __future__ import annotations

from collections.abc import Iterable

from tenonry.step import SchedulerOutput


class RankTransfers:
    """Merges the results of `poll` on each rank of an engine; for executors of several ranks.

    A transfer that a request waits for ends once every rank has reported it, because the others may still use its
    blocks: it is done if all ranks report success, and failed otherwise. A load within one step is reported only by
    ranks where it failed, so for a running request it fails with the first report.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._handle_of: dict[int, int] = {}  # by row
        self._failed_of: dict[int, dict[int, bool]] = {}  # handle → rank → True if it failed there
        self._ended: dict[int, bool] = {}  # handle → True if it failed; since the last `take`

    def begin(self, output: SchedulerOutput) -> None:
        """Begin the step of the next calls of `add`.

        Call this when its results are merged, not when it is sent: a row that leaves in the next step, which may be
        in flight already, still holds its request in this one.
        """
        for row in output.gone.tolist():
            self._handle_of.pop(row, None)
        self._handle_of.update({new.row: new.handle for new in output.new})

    def add(self, rank: int, done: Iterable[int], failed: Iterable[int]) -> None:
        """Add the report of one rank."""
        outcomes = dict.fromkeys(done, False) | dict.fromkeys(failed, True)
        for handle, has_failed in outcomes.items():
            if has_failed and handle in self._handle_of.values():
                self._ended[handle] = True
                continue
            failed_of = self._failed_of.setdefault(handle, {})
            failed_of[rank] = has_failed
            if len(failed_of) == self._num_ranks:
                del self._failed_of[handle]
                self._ended[handle] = any(failed_of.values())

    def take(self) -> tuple[list[int], list[int]]:
        """Return (done, failed) since the last call, for `ModelRunnerOutput.transfers_done` and `transfers_failed`."""
        ended = self._ended
        self._ended = {}
        return (
            [handle for handle, has_failed in ended.items() if not has_failed],
            [handle for handle, has_failed in ended.items() if has_failed],
        )
