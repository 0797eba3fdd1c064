"""Results of each request: its tokens, and its one terminal outcome. Test process.

The ledger computes every request's expected output by the model's arithmetic, so that a lost, repeated, foreign or
reordered token is found the moment it is delivered.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tenonry.messages import EngineCoreOutputs, FinishedOutput, ScheduledOutput, client_of
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.step import I32
from tenonry_testkit.fakes.tokens import Completion
from tenonry_testkit.row_checker import RowChecker
from tenonry_testkit.rules import (
    COUNTS,
    NO_OUTPUT_AFTER_THE_END,
    ONE_OUTCOME,
    OWN_CLIENT,
    OWN_LOGPROBS,
    RIGHT_ENDING,
    RIGHT_TOKENS,
    RuleBroken,
    expect,
)


class Entry:
    """One request: its expected output, its tokens, its outcome, and the events that it allows.

    `limit`: maximum number of tokens; `num_before`: initial tokens, prompt and delivered ones; `started_at`: the clock
    when it first ran.
    """

    __slots__ = (
        "arrival", "expected", "finished", "handle", "limit", "may_fail", "num_before", "num_cached", "num_prompt",
        "prompt_positions", "queued_s", "request", "row_checker", "started_at", "token_ids", "wants",
    )  # fmt: skip

    def __init__(self, request: Request, expected: Completion, arrival: int) -> None:
        self.request = request
        self.expected = expected
        self.arrival = arrival
        self.handle = request.handle
        self.token_ids: list[int] = []
        self.finished: FinishedOutput | None = None
        self.may_fail = expected.reason is FinishReason.ERROR
        # Copied now, before the scheduler receives the request.
        self.limit = request.max_total_tokens
        self.num_before = request.num_tokens
        self.num_prompt = request.num_prompt_tokens
        self.wants = request.source.sampling_params
        self.row_checker = RowChecker(request.source)
        self.prompt_positions: set[int] = set()  # with delivered log-probabilities
        self.started_at: float | None = None
        self.num_cached: int | None = None
        self.queued_s: float | None = None

    @property
    def is_live(self) -> bool:
        return self.finished is None

    def __repr__(self) -> str:
        how = "live" if self.finished is None else str(self.finished.reason)
        return f"request {self.request.request_id} (handle {self.handle}, {how}, {len(self.token_ids)} tokens)"


class Ledger:
    """All requests of one run, by handle."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self._live: dict[int, Entry] = {}

    @property
    def live(self) -> list[Entry]:
        """Requests without a terminal outcome, in order of arrival."""
        return list(self._live.values())

    @property
    def num_live(self) -> int:
        return len(self._live)

    def all_tokens(self, handle: int) -> list[int]:
        """Prompt, delivered tokens and the expected ones of a request."""
        entry = self.entries[handle]
        source = entry.request.source
        prompt = source.prompt_token_ids.tolist()
        return [*prompt, *source.output_token_ids, *entry.expected.token_ids]

    def add(self, entry: Entry) -> None:
        self.entries[entry.handle] = self._live[entry.handle] = entry

    def end(self, entry: Entry, finished: FinishedOutput) -> None:
        """The request's terminal outcome."""
        entry.finished = finished
        self._live.pop(entry.handle, None)

    def end_from_outside(self, handle: int, reason: FinishReason) -> None:
        """Record a request ended by `finish_requests`."""
        entry = self._find(handle)
        expect(entry.is_live, ONE_OUTCOME, f"{entry} was ended again, from outside")
        self.end(entry, FinishedOutput(handle, reason))

    def take(self, outputs_by_client: Mapping[int, EngineCoreOutputs]) -> list[Entry]:
        """Record the result of `update_from_output`; returns the requests that ended."""
        ended: list[Entry] = []
        for client, outputs in outputs_by_client.items():
            self._take_tokens(client, outputs)
            self._take_logprobs(outputs)
            self._take_prompt_logprobs(client, outputs)
            for event in outputs.scheduled:
                self._take_scheduled(client, event)
            ended += [self._take_finished(client, finished) for finished in outputs.finished]
        return ended

    def _find(self, handle: int) -> Entry:
        entry = self.entries.get(handle)
        if entry is None:
            raise RuleBroken(
                OWN_CLIENT,
                f"outputs name handle {handle}, but no request with that handle was added",
            )
        return entry

    def _of_client(self, client: int, handle: int) -> Entry:
        entry = self._find(handle)
        expect(
            client_of(handle) == client,
            OWN_CLIENT,
            "{} is in the outputs of client {}",
            entry,
            client,
        )
        return entry

    def _take_tokens(self, client: int, outputs: EngineCoreOutputs) -> None:
        handles = outputs.handles.tolist()
        token_ids = outputs.token_ids.tolist()
        offsets = outputs.offsets.tolist() or list(range(len(handles) + 1))
        well_formed = len(offsets) == len(handles) + 1 and offsets[-1] == len(token_ids)
        expect(
            well_formed,
            OWN_CLIENT,
            f"{len(handles)} handles, {len(token_ids)} tokens, offsets {offsets}",
        )
        expect(
            len(set(handles)) == len(handles),
            OWN_CLIENT,
            f"a handle appears twice in one delivery: {handles}",
        )
        for handle, start, end in zip(handles, offsets[:-1], offsets[1:], strict=True):
            entry = self._of_client(client, handle)
            expect(entry.is_live, NO_OUTPUT_AFTER_THE_END, "{} got {}", entry, token_ids[start:end])
            at = len(entry.token_ids)
            entry.token_ids += token_ids[start:end]
            self._check_tokens(entry, at)

    @staticmethod
    def _check_tokens(entry: Entry, at: int) -> None:
        """Check the tokens from output `at` on against the expected ones; an extra token is a late ending."""
        got = entry.token_ids
        wanted = entry.expected.token_ids
        if got[at:] != wanted[at : len(got)]:
            too_long = len(got) > len(wanted) and got[: len(wanted)] == wanted
            rule = RIGHT_ENDING if too_long else RIGHT_TOKENS
            raise RuleBroken(
                rule, f"{entry} got {got[at:]} at output {at}, expected {wanted[at : len(got)]}"
            )

    def _take_logprobs(self, outputs: EngineCoreOutputs) -> None:
        """Check log-probabilities: exactly the tokens of requests that ask for them have a line; `row` indexes the
        handles.
        """
        owners = outputs.handles
        if len(outputs.offsets):
            owners = np.repeat(owners, np.diff(outputs.offsets))
        handles = owners.tolist()
        token_ids = outputs.token_ids.tolist()
        found = outputs.logprobs
        asked = [
            i for i, handle in enumerate(handles) if self.entries[handle].wants.logprobs is not None
        ]
        rows = [] if found is None else _places(found.row, outputs.offsets)
        expect(
            sorted(rows) == asked,
            OWN_LOGPROBS,
            f"rows {rows} of {len(handles)} have some; {asked} asked",
        )
        for i, row in enumerate(rows):
            if found is not None:
                first = int(found.token_ids[i, 0])
                token = token_ids[row]
                entry = self.entries[handles[row]]
                expect(
                    first == token,
                    OWN_LOGPROBS,
                    "{} got token {} with those of {}",
                    entry,
                    token,
                    first,
                )

    def _take_prompt_logprobs(self, client: int, outputs: EngineCoreOutputs) -> None:
        pairs = zip(outputs.prompt_logprobs_handles, outputs.prompt_logprobs, strict=True)
        for place, (handle, part) in enumerate(pairs):
            entry = self._of_client(client, handle)
            detail = "part {} of {} names row {}"
            expect(part.row == place, OWN_LOGPROBS, detail, place, entry, part.row)
            end = part.start + len(part.rank)
            fits = (
                entry.is_live and entry.wants.prompt_logprobs is not None and 1 <= part.start < end
            )
            expect(
                fits and end <= entry.num_prompt,
                OWN_LOGPROBS,
                f"{entry} got those of positions {part.start}–{end}",
            )
            prompt = entry.request.source.prompt_token_ids[part.start : end].tolist()
            expect(
                part.token_ids[:, 0].tolist() == prompt,
                OWN_LOGPROBS,
                f"{entry} got those of another prompt",
            )
            entry.prompt_positions.update(range(part.start, end))

    def _take_scheduled(self, client: int, event: ScheduledOutput) -> None:
        entry = self._of_client(client, event.handle)
        expect(entry.num_cached is None, OWN_CLIENT, f"{entry} is said to have started twice")
        entry.num_cached = event.num_cached_tokens
        entry.queued_s = event.queued_s
        fits = 0 <= event.num_cached_tokens < entry.num_before
        expect(
            fits, RIGHT_TOKENS, f"{entry} is said to have {event.num_cached_tokens} cached tokens"
        )
        expect(
            entry.started_at is not None,
            OWN_CLIENT,
            f"{entry} is said to have started, but never ran",
        )
        queued_s = (entry.started_at or 0.0) - entry.request.arrival_time
        expect(
            abs(event.queued_s - queued_s) < 1e-6,
            COUNTS,
            f"{entry} queued {queued_s} s, not {event.queued_s}",
        )

    def _take_finished(self, client: int, finished: FinishedOutput) -> Entry:
        entry = self._of_client(client, finished.handle)
        expect(entry.is_live, ONE_OUTCOME, f"{entry} ended again: {finished}")
        is_told = entry.num_cached is not None or entry.started_at is None
        expect(is_told, COUNTS, "{} ran and ended, but no `scheduled` names it", entry)
        self.end(entry, finished)
        expected = entry.expected
        if finished.reason is FinishReason.ERROR:
            expect(entry.may_fail, RIGHT_ENDING, f"{entry} failed without cause: {finished.error}")
            expect(finished.error, RIGHT_ENDING, f"{entry} ended in an error without a text")
            return entry
        expect(
            finished.reason is not FinishReason.ABORT,
            ONE_OUTCOME,
            f"{entry} ended with reason abort, but finish_requests was not asked to",
        )
        right = finished.reason is expected.reason and entry.token_ids == expected.token_ids
        expect(
            right,
            RIGHT_ENDING,
            f"{entry} ended with {finished.reason} after {entry.token_ids}; expected {expected.reason} after "
            f"{expected.token_ids}",
        )
        if entry.wants.prompt_logprobs is not None:
            missing = set(range(1, entry.num_prompt)) - entry.prompt_positions
            expect(
                not missing,
                OWN_LOGPROBS,
                f"{entry} ended without those of prompt positions {sorted(missing)}",
            )
        same_id = finished.stop_token_id == expected.stop_token_id
        expect(
            same_id,
            RIGHT_ENDING,
            f"{entry}: stop id {finished.stop_token_id}, expected {expected.stop_token_id}",
        )
        return entry

    def summary(self) -> dict[str, int]:
        """Number of requests by outcome, and tokens delivered."""
        counts = {str(reason): 0 for reason in FinishReason} | {"live": 0, "tokens": 0}
        for entry in self.entries.values():
            counts["live" if entry.finished is None else str(entry.finished.reason)] += 1
            counts["tokens"] += len(entry.token_ids)
        return counts


def as_ids(values: object) -> np.ndarray:
    """Token ids as i32[n]."""
    return np.asarray(values, np.int32)


def _places(row: I32, offsets: I32) -> list[int]:
    """Token of each line, among all tokens: the lines of a row are those of its tokens, in order."""
    if not len(offsets):
        places: list[int] = row.tolist()
        return places
    following = offsets[:-1].tolist()
    found = []
    for index in row.tolist():
        found.append(following[index])
        following[index] += 1
    return found
