"""Reads a step's result into the columns and sorts its outputs by client. Engine process.

Work per step is a fixed number of numpy calls, and Python only for requests that end, fail or carry log-probabilities.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tenonry.errors import PluginError
from tenonry.messages import CLIENT_SHIFT, EngineCoreOutputs, FinishedOutput, client_of
from tenonry.outputs import FinishReason
from tenonry.step import (
    I32,
    NO_ROWS,
    ModelRunnerOutput,
    PromptLogprobs,
    RowFailure,
    SchedulerOutput,
    TokenLogprobs,
)
from tenonry_scheduling.lifecycle import Lifecycle
from tenonry_scheduling.rounds import Ragged, num_of_each
from tenonry_scheduling.rows import STOP_MASK, Index

OutputsByClient = defaultdict[int, EngineCoreOutputs]


class ResultReader:
    """Reads the results of one scheduler's steps, in the order of the steps."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._rows = lifecycle.rows
        self._scratch = np.empty(
            lifecycle.rows.size, np.int32
        )  # a number per row, used within one call

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> OutputsByClient:
        """Apply tokens and failures; returns the outputs by client index.

        Raises PluginError when the worker's result does not fit the step.
        """
        if output.round_tokens > 1:
            return self._read_round(output, result)
        row = result.row.astype(np.intp)
        token = result.token_ids
        answered = len(row) + len(result.failed_row)
        wanted = np.count_nonzero(output.samples)
        if len(token) != len(row) or answered < wanted:
            raise PluginError(
                f"the worker answered step {output.step_id} with {len(token)} tokens for {len(row)} rows and "
                f"{len(result.failed_row)} failures, but {wanted} rows sample one token each"
            )
        prompt_logprobs: list[tuple[int, PromptLogprobs]] = []
        if result.prompt_logprobs:
            prompt_logprobs = self._current_prompt_logprobs(output, result)
        finished: list[FinishedOutput] = []
        if len(result.failed_row):
            finished = self._fail(output, result.failed_row, result.failed_code)
        if output.step_id < self._rows.left_in:
            current = self._is_current(output, row)
            row = row[current]
            token = token[current]
        handle = self._rows.handle[row]
        if len(row):
            finished += self._append(row, token)
        if result.pooled:
            _attach_pooled(result, row, handle, finished)
        outputs_by_client = _split(handle, token)
        if result.logprobs is not None:
            self._attach_logprobs(outputs_by_client, row, handle, result.logprobs)
        if finished or self._lifecycle.first_runs:
            self._attach_events(outputs_by_client, finished)
        for owner, part in prompt_logprobs:
            outputs = outputs_by_client[client_of(owner)]
            part.row = len(outputs.prompt_logprobs)
            outputs.prompt_logprobs.append(part)
            outputs.prompt_logprobs_handles.append(owner)
        return outputs_by_client

    def _read_round(self, output: SchedulerOutput, result: ModelRunnerOutput) -> OutputsByClient:
        """As `read`, for a multi-token step."""
        row = result.row.astype(np.intp)
        _check_round(output, result)
        ragged = Ragged(result, output.round_tokens)
        finished: list[FinishedOutput] = []
        if len(result.failed_row):
            finished = self._fail(output, result.failed_row, result.failed_code)
        if output.step_id < self._rows.left_in:
            current = self._is_current(output, row)
            row = row[current]
            ragged.select(current)
        handle = self._rows.handle[row]
        if len(row):
            finished += self._append_round(row, ragged)
        outputs_by_client = _split(handle, ragged.kept(), ragged.count)
        if result.logprobs is not None:
            self._attach_logprobs(outputs_by_client, row, handle, result.logprobs)
        if finished or self._lifecycle.first_runs:
            self._attach_events(outputs_by_client, finished)
        return outputs_by_client

    def _append_round(self, row: Index, ragged: Ragged) -> list[FinishedOutput]:
        """Advance each row by its tokens; end complete requests."""
        columns = self._rows
        token = ragged.token_ids
        first = columns.num_tokens[row] - columns.pending[row]
        place = first[:, None] + ragged.places
        columns.token_ids[row[:, None], place] = token
        stopped: np.ndarray | None = None
        stops = columns.may_stop[token & STOP_MASK]
        if np.count_nonzero(stops):
            is_stop_id = (token[:, :, None] == columns.stop_ids[row][:, None, :]).any(axis=2)
            may_end = place >= columns.stop_from[row][:, None] - 1
            stopped = ragged.cut(is_stop_id & may_end)
        length = first + ragged.count
        columns.pending[row] = 0
        if not ragged.is_whole:
            columns.num_tokens[row] = length
            columns.num_computed[row] = length - 1
        ended = length >= columns.limit[row]
        if stopped is None:
            stopped = np.zeros_like(ended)
        finished = []
        for i in (ended | stopped).nonzero()[0].tolist():
            last = int(token[i, ragged.count[i] - 1])
            finished += self._end(int(row[i]), int(length[i]), last if stopped[i] else None)
        return finished

    def _is_current(self, output: SchedulerOutput, row: Index) -> np.ndarray:
        """Mask of results whose requests are still in their rows; those of an older generation are dropped."""
        generation = self._scratch
        generation.fill(-1)
        generation[output.row] = output.generation
        current: np.ndarray = generation[row] == self._rows.generation[row]
        return current

    def _is_current_row(self, output: SchedulerOutput, row: int) -> bool:
        current = self._is_current(output, np.array([row]))
        return bool(current[0])

    # ------------------------------------------------------------------ tokens
    def _append(self, row: Index, token: I32) -> list[FinishedOutput]:
        """Make each row's oldest pending token known; end complete requests."""
        columns = self._rows
        pending = columns.pending[row]
        if np.count_nonzero(pending) != len(row):
            unasked = row[pending == 0].tolist()
            raise PluginError(f"the worker sampled for rows {unasked}, which were not to sample")
        place = columns.num_tokens[row] - pending
        columns.token_ids[row, place] = token
        columns.pending[row] = pending - 1
        length = place + 1
        is_full = length >= columns.limit[row]
        low_bits = token & STOP_MASK
        stops = columns.may_stop[low_bits]
        if np.count_nonzero(stops):
            among = stops.nonzero()[0]
            rows = row[among]
            is_stop_id = (token[among, None] == columns.stop_ids[rows]).any(axis=1)
            may_end = length[among] >= columns.stop_from[rows]
            stops[among] = is_stop_id & may_end
        finished = []
        for i in (is_full | stops).nonzero()[0].tolist():
            stop_token_id = int(token[i]) if stops[i] else None
            finished += self._end(int(row[i]), int(length[i]), stop_token_id)
        return finished

    def _end(self, row: int, length: int, stop_token_id: int | None) -> list[FinishedOutput]:
        """End the request, or recompute it if it only reached the length limit of its class."""
        columns = self._rows
        columns.num_tokens[row] = length
        columns.pending[row] = 0  # tokens sampled after the last one are dropped
        request = columns.request(row)
        if stop_token_id is None and length < request.max_total_tokens:
            self._lifecycle.preempt(request)
            return []
        reason = FinishReason.LENGTH if stop_token_id is None else FinishReason.STOP
        finished = self._lifecycle.end(request, reason)
        finished.stop_token_id = stop_token_id
        return [finished]

    def _fail(self, output: SchedulerOutput, row: I32, code: I32) -> list[FinishedOutput]:
        """End failed rows first: a token of a failed row is not delivered."""
        failures = []
        codes = zip(row.tolist(), code.tolist(), strict=True)
        for failed, why in codes:
            if self._is_current_row(output, failed):
                request = self._rows.request(failed)
                finished = self._lifecycle.end(request, FinishReason.ERROR, drop=True)
                finished.error = RowFailure.TEXT.get(why, f"the worker reported failure code {why}")
                finished.code = RowFailure.CODE.get(why, "")
                failures.append(finished)
            elif why == RowFailure.NUMERICAL:
                # Its request has left, and other requests may find its blocks.
                self._lifecycle.blocks.reset()
        return failures

    # ------------------------------------------------------------------ events and log-probabilities
    def _attach_events(
        self, outputs_by_client: OutputsByClient, finished: list[FinishedOutput]
    ) -> None:
        for outcome in finished:
            outputs_by_client[client_of(outcome.handle)].finished.append(outcome)
        handles = {outcome.handle for outcome in finished}
        for event in self._lifecycle.first_runs:
            was_aborted = (
                event.handle not in handles and event.handle not in self._lifecycle.requests
            )
            if not was_aborted:
                outputs_by_client[client_of(event.handle)].scheduled.append(event)
        self._lifecycle.first_runs.clear()

    def _attach_logprobs(
        self,
        outputs_by_client: OutputsByClient,
        row: Index,
        handle: np.ndarray,
        logprobs: TokenLogprobs,
    ) -> None:
        """Attach log-probabilities; `logprobs.row` holds rows; each client receives the part of its requests, by index
        into its `handles`.
        """
        place = self._scratch
        client = handle >> np.uint64(CLIENT_SHIFT)
        for index, outputs in outputs_by_client.items():
            of_client = row[client == index]
            place.fill(-1)
            place[of_client] = np.arange(len(of_client))
            at = place[logprobs.row]
            wanted = at >= 0
            if wanted.any():
                outputs.logprobs = TokenLogprobs(
                    at[wanted],
                    logprobs.token_ids[wanted],
                    logprobs.logprobs[wanted],
                    logprobs.rank[wanted],
                )

    def _current_prompt_logprobs(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[tuple[int, PromptLogprobs]]:
        """Parts whose request is still in its row, each with the request's handle."""
        return [
            (int(self._rows.handle[part.row]), part)
            for part in result.prompt_logprobs
            if self._is_current_row(output, part.row)
        ]


def _attach_pooled(
    result: ModelRunnerOutput, row: Index, handle: np.ndarray, finished: list[FinishedOutput]
) -> None:
    """Attach pooled results to the requests that have just ended, by their handles in the current rows."""
    by_handle = {
        owner: result.pooled[place]
        for place, owner in zip(row.tolist(), handle.tolist(), strict=True)
        if place in result.pooled
    }
    for outcome in finished:
        outcome.pooled = by_handle.get(outcome.handle)


def _check_round(output: SchedulerOutput, result: ModelRunnerOutput) -> None:
    """Raise PluginError unless each row of the step has failed, or has a permitted number of tokens."""
    count = num_of_each(result)
    most = output.round_tokens
    fits = len(count) == len(result.row) and int(result.offsets[-1]) == len(result.token_ids)
    fits = fits and not np.count_nonzero((count < 1) | (count > most))
    if len(result.row) != len(output.row) or np.count_nonzero(result.row != output.row):
        rows = np.concatenate([result.row, result.failed_row])
        fits = fits and np.array_equal(np.sort(rows), np.sort(output.row))
    if not fits:
        raise PluginError(
            f"the worker answered step {output.step_id}, a round of {len(output.row)} rows, with "
            f"{len(result.token_ids)} tokens for {len(result.row)} rows and {len(result.failed_row)} failures; each "
            f"row samples 1 to {most} tokens (got {count.tolist()}) or fails, once"
        )


def _split(handle: np.ndarray, token: I32, count: I32 | None = None) -> OutputsByClient:
    """Split into one message per client; most engines have one. `count[i]`: tokens of the request `handle[i]`; None:
    one each.
    """
    outputs_by_client: OutputsByClient = defaultdict(EngineCoreOutputs)
    if len(handle) == 0:
        return outputs_by_client
    lowest = int(handle.min())
    highest = int(handle.max())
    first = client_of(lowest)
    if first == client_of(highest):
        outputs_by_client[first] = EngineCoreOutputs(
            handles=handle, token_ids=token, offsets=_offsets(count)
        )
        return outputs_by_client
    client = handle >> np.uint64(CLIENT_SHIFT)
    for index in np.unique(client).tolist():
        of_client = client == index
        owned = of_client if count is None else np.repeat(of_client, count)
        outputs_by_client[index] = EngineCoreOutputs(
            handles=handle[of_client],
            token_ids=token[owned],
            offsets=_offsets(None if count is None else count[of_client]),
        )
    return outputs_by_client


def _offsets(count: I32 | None) -> I32:
    """Start and end offsets of each request's tokens; empty if each has one."""
    if count is None:
        return NO_ROWS
    offsets = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    return offsets
