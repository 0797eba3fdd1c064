"""The books of KV transfers: promised loads, rows that wait for one, blocks kept after the end. Engine process.

A load is *promised* by `KVConnector.match`; the connector is told the blocks only when the step is built, so that a row
which does not start after all leaves no trace. A load that takes several steps makes its row wait. One that happens
before its step is trusted until the result of that very step names it as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenonry.interfaces.kv_connector import KVConnector
from tenonry.request import Request


class Transfers:
    """Books by handle and by row. `connector` may be None: then nothing is ever promised."""

    def __init__(self, connector: KVConnector | None) -> None:
        self._connector = connector
        self._promised: dict[int, tuple[Request, int]] = {}  # row → (request, tokens to load)
        self.loading: dict[int, tuple[int, int, int]] = {}  # handle → (row, tokens before, tokens after the load)
        self.loaded: dict[int, int] = {}  # handle → row, loaded before its step
        self.kept: dict[int, Any] = {}  # handle → blocks of an ended request
        self._failed: set[int] = set()  # handles whose load failed: computed here from now on

    @property
    def wait(self) -> bool:
        """A transfer is on the way that some row or block waits for."""
        return bool(self.loading or self.kept)

    def match(self, request: Request, num_computed: int, limit: int) -> tuple[int | None, bool]:
        """(tokens that can be loaded beyond `num_computed`, up to `limit` tokens in all; whether the row must wait)."""
        if self._connector is None or request.handle in self._failed:
            return 0, False
        extra, takes_steps = self._connector.match(request, num_computed)
        return (None if extra is None else max(0, min(extra, limit - num_computed))), takes_steps

    def promise(self, request: Request, row: int, num_computed: int, extra: int, *, wait: bool) -> None:
        """`row` has blocks for `extra` tokens to load beyond `num_computed`."""
        self._promised[row] = (request, extra)
        if wait:
            self.loading[request.handle] = (row, num_computed, num_computed + extra)
        else:
            self.loaded[request.handle] = row

    def withdraw(self, request: Request, row: int) -> bool:
        """The row is left. True if its blocks may be written at any moment, because a load is under way."""
        told = self._promised.pop(row, None) is None
        self.loaded.pop(request.handle, None)
        return self.loading.pop(request.handle, None) is not None and told

    def finished(self, request: Request, block_ids: Sequence[int]) -> tuple[bool, dict[str, Any] | None]:
        """Whether a request's blocks must be kept for a while, and what its client is told."""
        if self._connector is None:
            return False, None
        return self._connector.finished(request, block_ids)

    def fail(self, handle: int) -> None:
        """A load of this request failed; the connector is not asked again."""
        self._failed.add(handle)

    def forget(self, handle: int) -> None:
        self._failed.discard(handle)

    def metadata(self, block_ids: Any) -> Any:
        """Tell the connector about new promises (`block_ids(row)` are a row's blocks), and ask what the workers do."""
        if self._connector is None:
            return None
        for row, (request, extra) in self._promised.items():
            self._connector.allocated(request, block_ids(row), extra)
        self._promised.clear()
        return self._connector.build_metadata()
