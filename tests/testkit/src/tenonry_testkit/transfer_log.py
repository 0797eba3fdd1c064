"""Calls of a KV connector and their results, compared with its later actions. Test process.

The log is between the harness and both halves of a connector. Calls go through unchanged. Violations of the contract
are kept until `checked` ends, because the scheduler and the worker wrap exceptions inside a connector's call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tenonry.interfaces.kv_connector import BlockStore, KVConnector
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry_testkit.fakes.tokens import TokenModel, text_salt
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rules import (
    BLOCKS_IN_USE,
    CLIENT_PARAMETERS,
    FULL_BLOCKS,
    MATCH_IN_BLOCKS,
    TRANSFER_BRINGS,
    TRANSFERS_END,
    RuleBroken,
    expect,
)


class Transfer:
    """Blocks that a connector may read or write for one request.

    `tokens`: (first, end) positions of a load; None for a save. `before`: contents of the blocks of a load when it was
    allocated. `ends_with_step`: a load that must be complete when the step computes.
    """

    def __init__(
        self,
        request: Request,
        block_ids: Sequence[int],
        tokens: tuple[int, int] | None = None,
        before: Sequence[bytes] = (),
        *,
        ends_with_step: bool = False,
    ) -> None:
        self.request = request
        self.block_ids = [int(block) for block in block_ids]
        self.tokens = tokens
        self.before = before
        self.ends_with_step = ends_with_step
        self.num_polls = 0

    def __str__(self) -> str:
        """Describe the call that started it, and the missing result."""
        name = f"{self.request.request_id} (handle {self.request.handle})"
        missing = (
            f"poll() has not named handle {self.request.handle} in {self.num_polls} calls since"
        )
        if self.tokens is None:
            return f"finished() returned True for {name}, so blocks {self.block_ids} are kept; {missing}"
        first, end = self.tokens
        return (
            f"match() promised tokens {first} to {end - 1} of {name} in a later step and allocated() gave it blocks "
            f"{self.block_ids}; {missing}"
        )


class CheckedBlocks:
    """The worker's KV blocks, passed to a connector: records accesses to blocks without a transfer."""

    def __init__(self, blocks: BlockStore, log: TransferLog) -> None:
        self._blocks = blocks
        self._log = log

    @property
    def tensors(self) -> Mapping[str, Any]:
        return self._blocks.tensors

    @property
    def layout(self) -> str:
        return self._blocks.layout

    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        self._log.check_read(block_ids)
        return self._blocks.read(block_ids)

    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        self._log.check_write(block_ids)
        self._blocks.write(block_ids, data)


class TransferLog:
    """Both halves of one connector, monitored.

    `model` is the arithmetic of the worker; `blocks_of_rows` returns the blocks of running rows, and
    `expected_tokens(handle)` all tokens of a finished request.
    """

    def __init__(
        self,
        halves: tuple[KVConnector, KVConnector],
        model: TokenModel,
        block_size: int,
        blocks_of_rows: Callable[[], set[int]],
        expected_tokens: Callable[[int], list[int]],
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._blocks_of_rows = blocks_of_rows
        self._expected_tokens = expected_tokens
        self._store: BlockStore | None = None
        self._matched: dict[int, tuple[int, bool]] = {}  # handle → last num_computed and "later"
        self._asked_again: dict[int, tuple[Request, int]] = {}  # handle → consecutive None results
        self._under_way: dict[int, list[Transfer]] = {}
        self._parameters: dict[int, dict[str, Any] | None] = {}  # handle → those for its client
        self._lost: set[int] = set()  # requests that may end without blocks
        self._broken: list[RuleBroken] = []
        scheduler_half, worker_half = halves
        self._intercept(scheduler_half, "match", self._match)
        self._intercept(scheduler_half, "allocated", self._allocated)
        self._intercept(scheduler_half, "finished", self._finished)
        self._intercept(worker_half, "bind", self._bind)
        self._intercept(worker_half, "poll", self._poll)

    @staticmethod
    def _intercept(half: KVConnector, name: str, method: Callable[..., Any]) -> None:
        call = getattr(half, name)
        setattr(half, name, lambda *args: method(call, *args))

    # ------------------------------------------------------------------ for the harness
    @property
    def transfers(self) -> list[Transfer]:
        """Transfers that the connector has not reported yet."""
        return [transfer for some in self._under_way.values() for transfer in some]

    @property
    def was_asked(self) -> bool:
        """True after the first `match`: the scheduler uses its connector."""
        return bool(self._matched)

    @property
    def is_waited_for(self) -> bool:
        """True if a request or a block waits for the connector."""
        return bool(self._under_way) or bool(self._unanswered())

    def waits(self) -> str:
        """Pending results, one clause per request."""
        clauses = [str(transfer) for transfer in self.transfers]
        clauses += [
            f"match() has answered None (ask again later) {count} times in a row for {request.request_id} "
            f"(handle {request.handle})"
            for request, count in self._unanswered()
        ]
        return "; ".join(clauses) or "no transfer is under way"

    def _unanswered(self) -> list[tuple[Request, int]]:
        return [entry for entry in self._asked_again.values() if not entry[0].is_finished]

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        """Raise the connector's violations within the block, instead of their consequences."""
        try:
            yield
        finally:
            if self._broken:
                raise self._broken[0]

    def blocks_are_lost(self, handles: Iterable[int]) -> None:
        """A row failed, or caches were reset: these requests may end without blocks for the connector."""
        self._lost.update(handles)

    def check_parameters(self, ended: Iterable[Entry]) -> None:
        """Check that the clients of these requests received what `finished` returned for them. Raises RuleBroken."""
        for entry in ended:
            sent = entry.finished.kv_transfer_params if entry.finished is not None else None
            wanted = self._parameters.pop(entry.handle, None)
            detail = "the client of {} got {}; finished() returned {}"
            expect(sent == wanted, CLIENT_PARAMETERS, detail, entry, sent, wanted)

    # ------------------------------------------------------------------ scheduler half
    def _match(
        self, call: Callable[..., Any], request: Request, num_computed: int
    ) -> tuple[int | None, bool]:
        extra, later = call(request, num_computed)
        self._matched[request.handle] = (num_computed, later)
        if extra is None:
            _, count = self._asked_again.get(request.handle, (request, 0))
            self._asked_again[request.handle] = (request, count + 1)
            return extra, later
        self._asked_again.pop(request.handle, None)
        longest = (request.num_tokens - 1 - num_computed) // self._block_size * self._block_size
        if extra < 0 or extra % self._block_size or extra > max(0, longest):
            self._note(
                MATCH_IN_BLOCKS,
                f"match({request.request_id}, {num_computed}) returned {extra} tokens; expected a multiple of "
                f"{self._block_size}, at most {max(0, longest)}, as the request has {request.num_tokens} tokens",
            )
        return extra, later

    def _allocated(
        self, call: Callable[..., Any], request: Request, block_ids: Sequence[int], count: int
    ) -> None:
        first, later = self._matched.get(request.handle, (0, False))
        if count and self._store is not None:
            start = first // self._block_size
            loaded = list(block_ids)[start : start + count // self._block_size]
            transfer = Transfer(
                request,
                loaded,
                tokens=(first, first + count),
                before=self._store.read(loaded),
                ends_with_step=not later,
            )
            self._under_way.setdefault(request.handle, []).append(transfer)
        call(request, block_ids, count)

    def _finished(
        self, call: Callable[..., Any], request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        if request.finish_reason in (FinishReason.LENGTH, FinishReason.STOP):
            self._check_finished(request, block_ids)
        elif request.finish_reason is FinishReason.ABORT:
            self._check_held(request, block_ids)
        elif len(block_ids):
            text = f"finished({request.request_id}) got blocks {block_ids} of a request that failed"
            self._note(FULL_BLOCKS, text)
        keep, parameters = call(request, block_ids)
        self._parameters[request.handle] = parameters
        if keep:
            transfer = Transfer(request, block_ids)
            self._under_way.setdefault(request.handle, []).append(transfer)
        return keep, parameters

    def _check_finished(self, request: Request, block_ids: Sequence[int]) -> None:
        """A request that ended by itself has all of its tokens, and a full block for each of their parts."""
        num_full = (request.num_tokens - 1) // self._block_size
        count = len(block_ids)
        if count < num_full and not (request.handle in self._lost and not count):
            self._note(
                FULL_BLOCKS,
                f"finished({request.request_id}) got {count} blocks of {num_full}; it has {request.num_tokens} tokens",
            )
        wanted = self._expected_tokens(request.handle)
        if request.token_ids.tolist() != wanted:
            self._note(
                FULL_BLOCKS,
                f"finished({request.request_id}) got a request with tokens {request.token_ids}; expected {wanted}",
            )
        self._check_held(request, block_ids[:num_full])

    # ------------------------------------------------------------------ worker half
    def _bind(self, call: Callable[..., Any], blocks: BlockStore) -> None:
        self._store = blocks
        call(CheckedBlocks(blocks, self))

    def _poll(self, call: Callable[..., Any]) -> tuple[list[int], list[int]]:
        for transfer in self.transfers:
            transfer.num_polls += 1
        done, failed = (list(handles) for handles in call())
        for handle in done:
            self._end(handle, "done")
        for handle in failed:
            self._end(handle, "failed")
        for transfer in self.transfers:
            if transfer.ends_with_step:
                self._remove(transfer)
                self._check_content(transfer, "load() returned")
        return done, failed

    def _end(self, handle: Any, outcome: str) -> None:
        transfers = self._under_way.get(handle)
        if transfers is None:
            known = sorted(self._under_way)
            self._note(
                TRANSFERS_END,
                f"poll() named {handle!r} as {outcome}, but no transfer of that handle is under way; it may name each "
                f"once, now any of {known}",
            )
            return
        transfer = transfers[0]
        self._remove(transfer)
        if outcome == "done":
            self._check_content(transfer, f"poll() named handle {handle} as done")

    def _remove(self, transfer: Transfer) -> None:
        handle = transfer.request.handle
        left = [other for other in self._under_way[handle] if other is not transfer]
        if left:
            self._under_way[handle] = left
        else:
            del self._under_way[handle]

    # ------------------------------------------------------------------ blocks
    def _check_content(self, transfer: Transfer, event: str) -> None:
        """Check that the blocks of a load hold the K/V of the request's own tokens."""
        if transfer.tokens is None or self._store is None or len(self._store.tensors) != 1:
            return
        first, end = transfer.tokens
        request = transfer.request
        wanted = self._kv(request, end)
        contents = self._store.read(transfer.block_ids)
        for index, data in enumerate(contents):
            start = first + index * self._block_size
            if data != wanted[start : start + self._block_size].tobytes():
                self._note(
                    TRANSFER_BRINGS,
                    f"{event}, but block {transfer.block_ids[index]} does not hold the K/V of tokens {start} to "
                    f"{start + self._block_size - 1} of {request.request_id}: it holds "
                    f"{_describe(data, transfer.before[index])}. Write the bytes that were read for these tokens, with "
                    "this adapter, and report the load afterwards; name it as failed if they did not come",
                )
                return

    def _check_held(self, request: Request, block_ids: Sequence[int]) -> None:
        """Check that full blocks hold the K/V of the request's tokens, in order."""
        if self._store is None or len(self._store.tensors) != 1:
            return
        size = self._block_size
        wanted = self._kv(request, len(block_ids) * size)
        for index, data in enumerate(self._store.read(block_ids)):
            start = index * size
            if data != wanted[start : start + size].tobytes():
                self._note(
                    FULL_BLOCKS,
                    f"finished({request.request_id}) got block {block_ids[index]}, which does not hold its tokens "
                    f"{start} to {start + size - 1}",
                )
                return

    def _kv(self, request: Request, end: int) -> np.ndarray:
        token_ids = np.asarray(request.token_ids[:end], np.int32)[None]
        salt = np.array([text_salt(request.source.adapter)], np.uint64)
        kv: np.ndarray = self._model.kv(token_ids, salt)[0]
        return kv

    def check_write(self, block_ids: Sequence[int]) -> None:
        """Check that only blocks of a current load are written."""
        loading = _blocks(transfer for transfer in self.transfers if transfer.tokens)
        stray = sorted(set(map(int, block_ids)) - loading)
        if stray:
            self._note(
                BLOCKS_IN_USE,
                f"write() to blocks {stray}, which no load under way was given; those that were: {sorted(loading)}",
            )

    def check_read(self, block_ids: Sequence[int]) -> None:
        """Check that only blocks of running rows and of current transfers are read; others may have changed."""
        stray = set(map(int, block_ids)) - _blocks(self.transfers) - self._blocks_of_rows()
        if stray:
            self._note(
                BLOCKS_IN_USE,
                f"read() of blocks {sorted(stray)}, which belong to no running request and are not kept: finished() "
                "must return True for a request whose blocks are still to be read",
            )

    def _note(self, rule: str, detail: str) -> None:
        self._broken.append(RuleBroken(rule, detail))


def _blocks(transfers: Iterable[Transfer]) -> set[int]:
    return {block for transfer in transfers for block in transfer.block_ids}


def _describe(data: bytes, before: bytes) -> str:
    if data == before:
        return "what it held before the load"
    return "zeros" if not any(data) else "other bytes"
