"""One transfer of a request may be several, one per connector: it has ended when all of them have. Worker process."""

from __future__ import annotations

from collections.abc import Iterable


class Expected:
    """A transfer that the engine waits for: the connectors that have not named it yet, and whether one failed."""

    def __init__(self, connectors: Iterable[int]) -> None:
        self.missing = set(connectors)
        self.has_failed = False


class Endings:
    """Merged results of the connectors' `poll`."""

    def __init__(self) -> None:
        self._expected: dict[int, list[Expected]] = {}  # handle → transfers, oldest first
        self._done: list[int] = []
        self._failed: list[int] = []

    def expect(self, handle: int, connectors: Iterable[int]) -> None:
        """These connectors will each name the handle once."""
        self._expected.setdefault(handle, []).append(Expected(connectors))

    def add(self, connector: int, handle: int, *, worked: bool) -> None:
        """A connector named the handle. A failure that was not expected is that of a load within its step."""
        transfers = self._expected.get(handle, [])
        transfer = next((each for each in transfers if connector in each.missing), None)
        if transfer is None:
            if not worked:
                self._failed.append(handle)
            return
        transfer.missing.discard(connector)
        transfer.has_failed |= not worked
        if transfer.missing:
            return
        (self._failed if transfer.has_failed else self._done).append(handle)
        transfers.remove(transfer)
        if not transfers:
            del self._expected[handle]

    def take(self) -> tuple[list[int], list[int]]:
        """(done, failed) since the last call."""
        ended = (self._done, self._failed)
        self._done = []
        self._failed = []
        return ended
