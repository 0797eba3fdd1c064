"""The books of KV transfers: promised loads, rows that wait for one, blocks kept after the end. Engine process.

A load is *promised* by `KVConnector.match`; the connector is told the blocks only when the step is built, so that a row
which does not start after all leaves no trace. A load that takes several steps makes its row wait. One that happens
before its step is trusted until the result of that very step names it as failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.kv_connector import KVConnector
from tenonry.request import Request
from tenonry_kvcache.pool import BlockIds


class Transfers:
    """Books by handle and by row. `connector` may be None: then nothing is ever promised.

    `loading`: handle → (row, tokens before the load, tokens after it) of rows that wait; `kept`: handle → blocks of an
    ended request that are still read or written. `depth`: steps whose results may be out at once.
    """

    def __init__(self, connector: KVConnector | None, depth: int) -> None:
        self._connector, self._depth = connector, depth
        self.loading: dict[int, tuple[int, int, int]] = {}
        self.kept: dict[int, BlockIds] = {}
        self._promised: dict[int, tuple[Request, int]] = {}  # row → (request, tokens to load)
        self._loaded: dict[int, tuple[int, int]] = {}  # handle → (step whose result may disown the load, row or −1)
        self._cached: deque[tuple[int, BlockIds]] = deque()  # (step, blocks that entered the prefix cache then)
        self._failed: set[int] = set()  # handles whose load failed: computed here from now on
        self._step = 0

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
            self._loaded[request.handle] = (self._step, row)

    def cached(self, blocks: BlockIds) -> None:
        """These blocks entered the prefix cache."""
        if self._connector is not None and len(blocks):
            self._cached.append((self._step, blocks))

    def withdraw(self, request: Request, row: int) -> bool:
        """The row is left. True if its blocks may be written at any moment, because a load is under way."""
        told = self._promised.pop(row, None) is None
        step, _ = self._loaded.pop(request.handle, (-1, row))
        if step >= 0 and told:
            self._loaded[request.handle] = (step, -1)  # others may have read what it loaded
        return self.loading.pop(request.handle, None) is not None and told

    def disown(self, handle: int) -> tuple[int, BlockIds] | None:
        """A load failed that its step relied on: (row or −1, blocks whose cached contents may come from it).

        None if there was no such load. Whatever was computed from it was cached in the same step or later.
        """
        if handle not in self._loaded:
            return None
        since, row = self._loaded.pop(handle)
        blocks = [blocks for step, blocks in self._cached if step >= since]
        return row, np.concatenate(blocks) if blocks else np.empty(0, np.intp)

    def finished(self, request: Request, blocks: BlockIds) -> tuple[bool, dict[str, Any] | None]:
        """Whether a request's blocks must be kept for a while, and what its client is told. `blocks`: full ones."""
        if self._connector is None:
            return False, None
        return self._connector.finished(request, blocks.tolist())

    def fail(self, handle: int) -> None:
        """A load of this request failed; the connector is not asked again."""
        self._failed.add(handle)

    def forget(self, handle: int) -> None:
        """The request ended."""
        self._failed.discard(handle)

    def end_step(self, block_ids: Callable[[int], Sequence[int]]) -> Any:
        """Tell the connector about new promises (`block_ids(row)` are a row's blocks), and ask what the workers do."""
        if self._connector is None:
            return None
        for row, (request, extra) in self._promised.items():
            self._connector.allocated(request, block_ids(row), extra)
        self._promised.clear()
        known = self._step - self._depth  # the result of this step and of all before it has come
        self._loaded = {handle: load for handle, load in self._loaded.items() if load[0] > known}
        while self._cached and self._cached[0][0] <= known:
            self._cached.popleft()
        self._step += 1
        return self._connector.build_metadata()
