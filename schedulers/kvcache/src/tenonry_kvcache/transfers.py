"""The books of KV transfers: promised loads, rows that wait for one, blocks kept after the end. Engine process.

A load is *promised* by `KVConnector.match`; the connector is told the blocks only when the step is built, so that a row
which does not start after all leaves no trace. A load that takes several steps makes its row wait. One that happens
before its step is trusted until the result of that very step names it as failed.

Nobody waits for ever. A load that has not ended in time counts as failed, and its request computes its prompt itself.
But whatever a transfer was given may be read or written until the connector says that it ended: those blocks are kept,
for a save that never ends, too. They would come back with other contents under their old names, or be overwritten in
the hands of somebody else. They only cease to keep an engine without requests from going to rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from tenonry.errors import PluginFault, TenonryError
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.plugin.discovery import distribution_of_module
from tenonry.request import Request
from tenonry_kvcache.pool import BlockIds

logger = logging.getLogger("tenonry.kvcache")


class Load(NamedTuple):
    """A load that a row waits for: its computed tokens before and after, and when it will have taken too long."""

    row: int
    before: int
    after: int
    due: float


class Transfers:
    """Books by handle and by row. `connector` may be None: then nothing is ever promised.

    `loading`: handle → load, of rows that wait, oldest first; `kept`: handle → (transfers that have not ended, blocks
    that they may still read or write). `depth`: steps whose results may be out at once. `timeout`: seconds of `clock`
    that are waited for a transfer. `name`: the connector's, as the user wrote it.
    """

    def __init__(
        self,
        connector: KVConnector | None,
        depth: int,
        clock: Callable[[], float],
        timeout: float,
        name: str = "",
    ) -> None:
        self._connector, self._depth, self._clock, self._timeout = connector, depth, clock, timeout
        self._name = name or type(connector).__name__
        self.loading: dict[int, Load] = {}
        self.kept: dict[int, tuple[int, BlockIds]] = {}
        self._kept_until = 0.0  # from then on nobody waits for kept blocks
        self._promised: dict[int, tuple[Request, int]] = {}  # row → (request, tokens to load)
        self._loaded: dict[
            int, tuple[int, int]
        ] = {}  # handle → (step whose result may disown the load, row or −1)
        self._cached: deque[tuple[int, BlockIds]] = (
            deque()
        )  # (step, blocks that entered the prefix cache then)
        self._failed: set[int] = set()  # handles whose load failed: computed here from now on
        self._step = 0

    @property
    def wait(self) -> bool:
        """A transfer is on the way that some row or block waits for."""
        return bool(self.loading) or (bool(self.kept) and self._clock() < self._kept_until)

    def match(self, request: Request, num_computed: int, limit: int) -> tuple[int | None, bool]:
        """(tokens that can be loaded beyond `num_computed`, up to `limit` tokens in all; whether the row must wait)."""
        if self._connector is None or request.handle in self._failed:
            return 0, False
        extra, takes_steps = self._ask("match", request, num_computed)
        return (None if extra is None else max(0, min(extra, limit - num_computed))), takes_steps

    def promise(
        self, request: Request, row: int, num_computed: int, extra: int, *, wait: bool
    ) -> None:
        """`row` has blocks for `extra` tokens to load beyond `num_computed`."""
        self._promised[row] = (request, extra)
        if wait:
            self._kept_until = due = self._clock() + self._timeout
            self.loading[request.handle] = Load(row, num_computed, num_computed + extra, due)
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

    def overdue(self) -> list[int]:
        """Rows whose load has taken too long; it counts as failed. They are to be left, and their blocks kept."""
        now = self._clock()
        late = list(takewhile(lambda entry: entry[1].due <= now, self.loading.items()))
        for handle, _ in late:
            self.fail(handle)
        if late:
            logger.warning(
                "%d loads of KV have not ended within %g s; their requests are computed here, and their blocks stay "
                "aside until the KV connector says that the loads ended", len(late), self._timeout,
            )  # fmt: skip
        return [load.row for _, load in late]

    def keep(self, handle: int, blocks: BlockIds) -> None:
        """A transfer of this handle may still read or write these blocks."""
        count, others = self.kept.get(handle, (0, blocks[:0]))
        self.kept[handle] = count + 1, np.concatenate([others, blocks])

    def give_back(self, handle: int) -> BlockIds:
        """A transfer ended: blocks that nobody needs any more. With two of one handle, none before the last."""
        count, blocks = self.kept.pop(handle)
        if count == 1:
            return blocks
        self.kept[handle] = count - 1, blocks
        return blocks[:0]

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
        keep: tuple[bool, dict[str, Any] | None] = self._ask("finished", request, blocks.tolist())
        if keep[0]:
            self._kept_until = self._clock() + self._timeout
        return keep

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
            self._ask("allocated", request, block_ids(row), extra)
        self._promised.clear()
        known = self._step - self._depth  # the result of this step and of all before it has come
        self._loaded = {handle: load for handle, load in self._loaded.items() if load[0] > known}
        while self._cached and self._cached[0][0] <= known:
            self._cached.popleft()
        self._step += 1
        return self._ask("build_metadata")

    def _ask(self, call: str, *args: Any) -> Any:
        """Call the connector; what it raises by mistake names it, not the scheduler that is built on this library."""
        try:
            return getattr(self._connector, call)(*args)
        except TenonryError:
            raise
        except Exception as error:
            origin = distribution_of_module(type(self._connector).__module__)
            raise PluginFault(self._name, *origin, call, error) from error
