"""The state of KV transfers: promised loads, waiting rows, blocks reserved after the end. Engine process.

A load is *promised* by `KVConnector.match`; the connector receives the blocks only when the step is built, so that a
row that does not start has no effect. A row waits for a load of several steps. A load before its step is trusted until
the result of that step reports a failure.

No wait is unbounded: a load that has not ended in time counts as failed, and its request computes its prompt itself.
But the blocks of a transfer may be read or written until the connector reports its end, so they are kept until then,
even for a save that never ends. If reallocated, they would be saved with other contents under their old names, or be
overwritten while another request uses them. After the time limit they no longer keep an idle engine awake, and their
connector is disabled until it returns them; if the remaining blocks cannot hold a longest sequence, the engine exits
with an error that names the connector, and its replacement starts with all blocks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from tenonry.errors import ConfigError, PluginFault, TenonryError, is_interrupt
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.plugin.discovery import distribution_of_module
from tenonry.request import Request
from tenonry_kvcache.pool import BlockIds

logger = logging.getLogger("tenonry.kvcache")
# Of the maximum wait for reserved blocks: the engine may have been idle or stopped.
MAX_STEP_S = 1.0
NO_BLOCK_IDS = np.empty(0, np.intp)
LEFT = -1  # instead of a row: the loading request has left it
# True if blocks are reserved, and parameters for the client.
Ending = tuple[bool, dict[str, Any] | None]


class PendingLoad(NamedTuple):
    """A load that a row waits for: its computed tokens before and after, and its deadline.

    `is_spoilt`: the row's cached blocks are not trusted any more, so it restarts when the load ends.
    """

    row: int
    before: int
    after: int
    due: float
    is_spoilt: bool = False


class TrustedLoad(NamedTuple):
    """A load that its step relied on: the step whose result may report a failure, and the row, or LEFT."""

    step: int
    row: int


class KeptBlocks(NamedTuple):
    """Blocks that `num_transfers` transfers of one request may still read or write, the first one since `since`."""

    num_transfers: int
    blocks: BlockIds
    since: float


class Transfers:
    """State by handle and by row. Without a `connector` no load is promised.

    `loading`: handle → load, of rows that wait, oldest first. `kept`: handle → blocks of unfinished transfers.
    `is_left_out`: the connector is disabled because it exceeded the time limit. `depth`: maximum steps in flight.
    `timeout`: seconds of `clock` that a transfer may take. `name`: name of the connector in the user's configuration.
    """

    def __init__(
        self,
        connector: KVConnector | None,
        depth: int,
        clock: Callable[[], float],
        timeout: float,
        name: str = "",
    ) -> None:
        self._connector = connector
        self._depth = depth
        self._clock = clock
        self._timeout = timeout
        self._name = name or type(connector).__name__
        self.loading: dict[int, PendingLoad] = {}
        self.kept: dict[int, KeptBlocks] = {}
        self._kept_until = 0.0  # after this time an idle engine does not wait for reserved blocks
        self._promised: dict[int, tuple[Request, int]] = {}  # row → (request, tokens to load)
        self._trusted: dict[int, TrustedLoad] = {}  # by handle
        self._cached: deque[tuple[int, BlockIds]] = deque()  # (step, blocks cached in it)
        self._failed: set[int] = set()  # handles of failed loads: computed here from now on
        self._step = 0
        self.is_left_out = False
        self._served_s = 0.0  # without times in which nothing stepped
        self._stepped_at = clock()

    @property
    def is_used(self) -> bool:
        """True if there is a connector."""
        return self._connector is not None

    def numbers(self) -> dict[str, float]:
        """Numbers of the connector."""
        if self._connector is None:
            return {}
        numbers: dict[str, float] = self._ask("numbers")
        return dict(numbers)

    @property
    def wait(self) -> bool:
        """True if a row or block waits for a transfer."""
        if self.loading:
            return True
        return bool(self.kept) and self._clock() < self._kept_until

    def match(self, request: Request, num_computed: int, limit: int) -> tuple[int | None, bool]:
        """Return (tokens that can be loaded beyond `num_computed`, up to `limit` tokens in all; True if the row must
        wait).

        None instead of a number: retry in a later step.
        """
        if self._connector is None or self.is_left_out or request.handle in self._failed:
            return 0, False
        if not limit:
            return 0, False
        extra, takes_steps = self._ask("match", request, num_computed)
        if extra is not None:
            extra = max(0, min(extra, limit - num_computed))
        return extra, takes_steps

    def promise(
        self, request: Request, row: int, num_computed: int, extra: int, *, wait: bool
    ) -> None:
        """Promise a load of `extra` tokens beyond `num_computed` to `row`, which has blocks for them."""
        self._promised[row] = (request, extra)
        if not wait:
            self._trusted[request.handle] = TrustedLoad(self._step, row)
            return
        due = self._clock() + self._timeout
        self._kept_until = due
        self.loading[request.handle] = PendingLoad(
            row, before=num_computed, after=num_computed + extra, due=due
        )

    def spoil(self, rows: Collection[int]) -> None:
        """Mark the waiting ones of these rows, whose cached blocks were dropped."""
        for handle, load in self.loading.items():
            if load.row in rows:
                self.loading[handle] = load._replace(is_spoilt=True)

    def cached(self, blocks: BlockIds) -> None:
        """Record blocks that entered the prefix cache."""
        if self._connector is not None and len(blocks):
            self._cached.append((self._step, blocks))

    def withdraw(self, request: Request, row: int) -> bool:
        """Remove the row from its transfers. True if a current load may still write its blocks."""
        handle = request.handle
        is_promised = self._promised.pop(row, None) is not None
        trusted = self._trusted.pop(handle, None)
        if trusted is not None and not is_promised:
            # Other requests may have read the loaded blocks.
            self._trusted[handle] = TrustedLoad(trusted.step, LEFT)
        was_loading = self.loading.pop(handle, None) is not None
        return was_loading and not is_promised

    def overdue(self) -> list[int]:
        """Rows whose load timed out; they must be left, and their blocks reserved."""
        now = self._clock()
        overdue = list(takewhile(lambda entry: entry[1].due <= now, self.loading.items()))
        for handle, _ in overdue:
            self.fail(handle)
        if overdue:
            logger.warning(
                "%d loads of KV have not ended within %g s; computing their requests; their "
                "blocks stay reserved until the KV connector reports the end of the loads", len(overdue), self._timeout,
            )  # fmt: skip
        return [load.row for _, load in overdue]

    def keep(self, handle: int, blocks: BlockIds) -> None:
        """Reserve these blocks for a transfer of this handle."""
        kept = self.kept.get(handle)
        if kept is None:
            self.kept[handle] = KeptBlocks(1, blocks, self._served_s)
        else:
            joined = np.concatenate([kept.blocks, blocks])
            self.kept[handle] = KeptBlocks(kept.num_transfers + 1, joined, kept.since)

    def give_back(self, handle: int) -> BlockIds:
        """End a transfer; returns blocks that are free now. With two transfers of one handle, none before the last."""
        kept = self.kept.pop(handle)
        if kept.num_transfers == 1:
            return kept.blocks
        self.kept[handle] = kept._replace(num_transfers=kept.num_transfers - 1)
        return kept.blocks[:0]

    def check_kept(self, num_blocks: int, num_needed: int) -> None:
        """Disable a connector that holds blocks beyond the time limit, until it returns them.

        Raises PluginFault where fewer than `num_needed` of `num_blocks` are left: requests would wait forever.
        """
        late = self._served_s - self._timeout
        num_kept = sum(len(kept.blocks) for kept in self.kept.values() if kept.since <= late)
        if num_kept and num_blocks - num_kept < num_needed:
            text = (
                f"it keeps {num_kept} of {num_blocks} KV blocks for more than {self._timeout:g} s"
            )
            raise PluginFault(self._name, *self._origin(), "poll", TimeoutError(text))
        if bool(num_kept) != self.is_left_out:
            self.is_left_out = bool(num_kept)
            if num_kept:
                logger.error(
                    "KV connector '%s' (%s) keeps %d blocks for more than %g s "
                    "(kv_transfer_timeout); it is disabled until it returns them",
                    self._name,
                    " ".join(filter(None, self._origin())) or "no distribution",
                    num_kept,
                    self._timeout,
                )
            else:
                logger.info(
                    "KV connector '%s' returned its blocks; it is enabled again", self._name
                )

    def disown(self, handle: int) -> tuple[int, BlockIds] | None:
        """Remove a failed load that its step relied on: returns (row or LEFT, blocks whose cached contents may come
        from it).

        None without such a load. Everything computed from it was cached in the same step or later.
        """
        trusted = self._trusted.pop(handle, None)
        if trusted is None:
            return None
        return trusted.row, self._cached_since(trusted.step)

    def has_open_load(self, handle: int) -> bool:
        """True if the request relied on a load whose result may be missing."""
        return handle in self._trusted

    def suspects(self) -> BlockIds:
        """Blocks whose cached contents may come from a load without a result."""
        if not self._trusted:
            return NO_BLOCK_IDS
        return self._cached_since(min(load.step for load in self._trusted.values()))

    def _cached_since(self, first: int) -> BlockIds:
        return np.concatenate(
            [NO_BLOCK_IDS, *(blocks for step, blocks in self._cached if step >= first)]
        )

    def finished(self, request: Request, blocks: BlockIds) -> Ending:
        """Return True if a request's blocks must be reserved, and parameters for its client. `blocks`: full ones."""
        if self._connector is None or self.is_left_out:
            return False, None
        ending: Ending = self._ask("finished", request, blocks.tolist())
        keeps_blocks = ending[0]
        if keeps_blocks:
            self._kept_until = self._clock() + self._timeout
        return ending

    def fail(self, handle: int) -> None:
        """Record a failed load of this request; the connector is not queried for it again."""
        self._failed.add(handle)

    def forget(self, handle: int) -> None:
        """Drop the state of an ended request."""
        self._failed.discard(handle)

    def end_step(self, block_ids: Callable[[int], Sequence[int]]) -> Any:
        """Pass the blocks of new promises (`block_ids(row)`) to the connector; returns its metadata for the workers."""
        if self._connector is None:
            return None
        for row, (request, extra) in self._promised.items():
            self._ask("allocated", request, block_ids(row), extra)
        self._promised.clear()
        known = self._step - self._depth  # results of this step and all earlier ones are known
        self._trusted = {
            handle: load
            for handle, load in self._trusted.items()
            if load.step > known
        }  # fmt: skip
        while self._cached and self._cached[0][0] <= known:
            self._cached.popleft()
        self._step += 1
        now = self._clock()
        self._served_s += min(now - self._stepped_at, MAX_STEP_S)
        self._stepped_at = now
        return self._ask("build_metadata")

    def _ask(self, call: str, *args: Any) -> Any:
        """Call the connector; unexpected exceptions are attributed to it, not to the scheduler that uses it."""
        try:
            return getattr(self._connector, call)(*args)
        except TenonryError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise PluginFault(self._name, *self._origin(), call, error) from error

    def _origin(self) -> tuple[str, str]:
        """Distribution and version of the connector."""
        return distribution_of_module(type(self._connector).__module__)


def check_movable(kinds: Sequence[str]) -> None:
    """Raise ConfigError unless a sequence consists of the blocks of one table."""
    unmoved = {"recurrent", "opaque"}.intersection(kinds)
    if unmoved:
        raise ConfigError(
            f"a KV connector moves blocks, and this model's KV groups {sorted(unmoved)} keep what a sequence has "
            "elsewhere; leave out --kv-connector"
        )
    if "sliding" in kinds or len(kinds) > 1:
        raise ConfigError(
            f"a KV connector moves the blocks of one table, and this model has KV groups {list(kinds)}, of which "
            "sliding ones give blocks back; leave out --kv-connector, or keep all layers in one group (worker torch: "
            "--worker-option sliding_window_groups=false)"
        )
