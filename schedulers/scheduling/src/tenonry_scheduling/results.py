"""Reads a step's result into the columns and tells each client its news. Engine process.

Work per step is a fixed number of numpy calls, and Python only for requests that end, fail or carry log-probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from tenonry.errors import PluginError
from tenonry.handle import CLIENT_SHIFT, client_of
from tenonry.messages import EngineCoreOutputs, FinishedOutput, ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.step import (
    I32,
    ModelRunnerOutput,
    PromptLogprobs,
    RowFailure,
    SchedulerOutput,
    TokenLogprobs,
)
from tenonry_scheduling.rows import STOP_MASK, Index

if TYPE_CHECKING:
    from tenonry_scheduling.base import BaseScheduler

News = defaultdict[int, EngineCoreOutputs]


class ResultReader:
    """Belongs to one scheduler. `scheduled`: the requests that started since the last result."""

    def __init__(self, scheduler: BaseScheduler) -> None:
        self._scheduler, self._rows = scheduler, scheduler.rows
        self._stamp = np.empty(scheduler.rows.size, np.int32)
        self.scheduled: list[ScheduledOutput] = []

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> News:
        """Take in tokens and failures; returns the news per client index.

        Raises PluginError when the worker answered something else than was asked.
        """
        row, token = result.row.astype(np.intp), result.token_ids
        answered = len(row) + len(result.failed_row)
        if len(token) != len(row) or answered < np.count_nonzero(output.samples):
            raise PluginError(
                f"the worker answered step {output.step_id} with {len(token)} tokens for {len(row)} rows and "
                f"{len(result.failed_row)} failures, but {np.count_nonzero(output.samples)} rows sample one token each"
            )
        prompt_logprobs = self._prompt_logprobs(output, result)
        ended = (
            self._fail(output, result.failed_row, result.failed_code)
            if len(result.failed_row)
            else []
        )
        if output.step_id < self._rows.left_in:
            fresh = self._is_fresh(output, row)
            row, token = row[fresh], token[fresh]
        handle = self._rows.handle[row]
        if len(row):
            ended += self._append(row, token)
        news = _split(handle, token)
        if result.logprobs is not None:
            self._attach_logprobs(news, row, handle, result.logprobs)
        self._attach_events(news, ended)
        for target, part in prompt_logprobs:
            told = news[client_of(target)]
            part.row = len(told.prompt_logprobs)
            told.prompt_logprobs.append(part)
            told.prompt_logprobs_handles.append(target)
        return news

    def _is_fresh(self, output: SchedulerOutput, row: Index) -> np.ndarray:
        """Results of an older generation belong to requests that left the row: they are dropped."""
        self._stamp.fill(-1)
        self._stamp[output.row] = output.generation
        fresh: np.ndarray = self._stamp[row] == self._rows.generation[row]
        return fresh

    def _append(self, row: Index, token: I32) -> list[FinishedOutput]:
        """Make each row's oldest pending token known; end the requests that are complete."""
        columns = self._rows
        pending = columns.pending[row]
        if np.count_nonzero(pending) != len(row):
            raise PluginError(
                f"the worker sampled for rows {row[pending == 0].tolist()}, which were not to sample"
            )
        place = columns.num_tokens[row] - pending
        columns.token_ids[row, place] = token
        columns.pending[row] = pending - 1
        length = place + 1
        full = length >= columns.limit[row]
        maybe = columns.may_stop[token & STOP_MASK]
        if np.count_nonzero(maybe):
            among = maybe.nonzero()[0]
            stops = (token[among, None] == columns.stop_ids[row[among]]).any(axis=1)
            maybe[among] = stops & (length[among] >= columns.stop_from[row[among]])
        done = (full | maybe).nonzero()[0]
        return [
            self._end(int(row[i]), int(length[i]), int(token[i]) if maybe[i] else None) for i in done.tolist()
        ]  # fmt: skip

    def _end(self, row: int, length: int, stop_token_id: int | None) -> FinishedOutput:
        columns = self._rows
        # Tokens still pending behind this one belong to nobody.
        columns.num_tokens[row] = length
        columns.pending[row] = 0
        reason = FinishReason.LENGTH if stop_token_id is None else FinishReason.STOP
        finished = self._scheduler.end(columns.request(row), reason)
        finished.stop_token_id = stop_token_id
        return finished

    def _fail(self, output: SchedulerOutput, row: I32, code: I32) -> list[FinishedOutput]:
        """End failed rows first: a token that came with the failure is not delivered."""
        ended = []
        for failed, why in zip(row.tolist(), code.tolist(), strict=True):
            if self._is_fresh(output, np.array([failed]))[0]:
                finished = self._scheduler.end(
                    self._rows.request(failed), FinishReason.ERROR, drop=True
                )
                finished.error = RowFailure.TEXT.get(why, f"the worker reported failure code {why}")
                ended.append(finished)
            elif why == RowFailure.NUMERICAL:
                self._scheduler.blocks.reset()  # it left meanwhile, and anybody may find what it computed
        return ended

    def _attach_events(self, news: News, ended: list[FinishedOutput]) -> None:
        for finished in ended:
            news[client_of(finished.handle)].finished.append(finished)
        told = {finished.handle for finished in ended}
        for event in self.scheduled:
            if (
                event.handle in told or event.handle in self._scheduler.requests
            ):  # not what was aborted meanwhile
                news[client_of(event.handle)].scheduled.append(event)
        self.scheduled.clear()

    def _attach_logprobs(
        self, news: News, row: Index, handle: np.ndarray, logprobs: TokenLogprobs
    ) -> None:
        """`logprobs.row` holds rows; each client gets the part of its requests, by index into its `handles`."""
        place = self._stamp
        client = handle >> np.uint64(CLIENT_SHIFT)
        for index, outputs in news.items():
            mine = row[client == index]
            place.fill(-1)
            place[mine] = np.arange(len(mine))
            at = place[logprobs.row]
            wanted = at >= 0
            if wanted.any():
                outputs.logprobs = TokenLogprobs(
                    at[wanted],
                    logprobs.token_ids[wanted],
                    logprobs.logprobs[wanted],
                    logprobs.rank[wanted],
                )

    def _prompt_logprobs(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> list[tuple[int, PromptLogprobs]]:
        return [
            (int(self._rows.handle[part.row]), part)
            for part in result.prompt_logprobs
            if self._is_fresh(output, np.array([part.row]))[0]
        ]


def _split(handle: np.ndarray, token: I32) -> News:
    """One message per client; most engines have one."""
    news: News = defaultdict(EngineCoreOutputs)
    if len(handle) == 0:
        return news
    first, last = client_of(int(handle.min())), client_of(int(handle.max()))
    if first == last:
        news[first] = EngineCoreOutputs(handles=handle, token_ids=token)
        return news
    client = handle >> np.uint64(CLIENT_SHIFT)
    for index in np.unique(client).tolist():
        mine = client == index
        news[index] = EngineCoreOutputs(handles=handle[mine], token_ids=token[mine])
    return news
