"""Reads a step's result into the columns and tells each client its news. Engine process.

Work per step is a fixed number of numpy calls, and Python only for requests that end, fail or carry log-probabilities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenonry.errors import ContractViolation
from tenonry.messages import EngineCoreOutputs, FinishedOutput, ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.request import CLIENT_SHIFT
from tenonry.step import I32, ModelRunnerOutput, PromptLogprobs, RowFailure, SchedulerOutput, TokenLogprobs

if TYPE_CHECKING:
    from tenonry.scheduling.base import BaseScheduler


class ResultReader:
    """Belongs to one scheduler. `scheduled`: (client, event) of requests that started since the last result."""

    def __init__(self, scheduler: BaseScheduler) -> None:
        self._scheduler, self._rows = scheduler, scheduler.rows
        self._stamp = np.full(scheduler.rows.size, -1, np.int32)
        self.scheduled: list[tuple[int, ScheduledOutput]] = []

    def read(self, output: SchedulerOutput, result: ModelRunnerOutput) -> dict[int, EngineCoreOutputs]:
        """Take in tokens and failures; returns the news per client index."""
        self._stamp.fill(-1)
        self._stamp[output.row] = output.generation
        row, token = result.row, result.token_ids
        if len(token) != len(row):
            raise ContractViolation(
                self._scheduler.context.plugin_name, output.step_id, "one token per sampling row",
                f"the worker returned {len(token)} tokens for {len(row)} rows",
            )  # fmt: skip
        fresh = self._is_fresh(row)
        if not fresh.all():
            row, token = row[fresh], token[fresh]
        handle = self._rows.handle[row]
        prompt_logprobs = self._prompt_logprobs(result)
        ended = self._append(row, token)
        if len(result.failed_row):
            ended += self._fail(result)
        news = self._group(handle, token)
        if result.logprobs is not None:
            self._attach_logprobs(news, row, handle, result.logprobs)
        for finished in ended:
            _of(news, finished.handle >> CLIENT_SHIFT).finished.append(finished)
        for client, event in self.scheduled:
            _of(news, client).scheduled.append(event)
        self.scheduled.clear()
        for target, part in prompt_logprobs:
            client_news = _of(news, target >> CLIENT_SHIFT)
            client_news.prompt_logprobs.append(part)
            client_news.prompt_logprobs_handles.append(target)
        return news

    def _is_fresh(self, row: I32) -> np.ndarray:
        """Results of an older generation belong to requests that left the row: they are dropped."""
        stamp = self._stamp[row]
        fresh: np.ndarray = (stamp == self._rows.generation[row]) & (stamp >= 0)
        return fresh

    def _append(self, row: I32, token: I32) -> list[FinishedOutput]:
        """Make each row's oldest pending token known; end the requests that are complete."""
        if len(row) == 0:
            return []
        columns = self._rows
        place = columns.num_tokens[row] - columns.pending[row]
        columns.token_ids[row, place] = token
        columns.pending[row] -= 1
        length = place + 1
        stopped = (token[:, None] == columns.stop_ids[row]).any(axis=1) & (length >= columns.stop_from[row])
        full = length >= columns.limit[row]
        done = stopped | full
        if not done.any():
            return []
        return [
            self._end(int(row[i]), int(length[i]), int(token[i]) if stopped[i] else None)
            for i in np.flatnonzero(done).tolist()
        ]

    def _end(self, row: int, length: int, stop_token_id: int | None) -> FinishedOutput:
        columns = self._rows
        # Tokens still pending behind this one belong to nobody.
        overrun = int(columns.num_tokens[row]) - length
        columns.num_tokens[row] -= overrun
        columns.pending[row] = 0
        columns.num_computed[row] = min(int(columns.num_computed[row]), length - 1)
        reason = FinishReason.LENGTH if stop_token_id is None else FinishReason.STOP
        finished = self._scheduler.end(columns.request(row), reason)
        finished.stop_token_id = stop_token_id
        return finished

    def _fail(self, result: ModelRunnerOutput) -> list[FinishedOutput]:
        ended = []
        fresh = self._is_fresh(result.failed_row)
        for row, code in zip(result.failed_row[fresh].tolist(), result.failed_code[fresh].tolist(), strict=True):
            finished = self._scheduler.end(self._rows.request(row), FinishReason.ERROR, drop=True)
            finished.error = RowFailure.TEXT.get(code, f"the worker reported failure code {code}")
            ended.append(finished)
        return ended

    def _group(self, handle: np.ndarray, token: I32) -> dict[int, EngineCoreOutputs]:
        if len(handle) == 0:
            return {}
        client = handle >> np.uint64(CLIENT_SHIFT)
        first = int(client[0])
        if (client == client[0]).all():
            return {first: EngineCoreOutputs(handles=handle, token_ids=token)}
        news = {}
        for index in np.unique(client).tolist():
            mine = client == index
            news[index] = EngineCoreOutputs(handles=handle[mine], token_ids=token[mine])
        return news

    def _attach_logprobs(
        self, news: dict[int, EngineCoreOutputs], row: I32, handle: np.ndarray, logprobs: TokenLogprobs
    ) -> None:
        """`logprobs.row` holds rows; each client gets the part of its requests, by index into its `handles`."""
        place = np.full(self._rows.size, -1, np.int64)
        place[row] = np.arange(len(row))
        at = place[logprobs.row]
        client = handle[at] >> np.uint64(CLIENT_SHIFT) if len(handle) else np.empty(0, np.uint64)
        for index, outputs in news.items():
            mine = (at >= 0) & (client == index)
            wanted = handle[at[mine]]
            where = {h: i for i, h in enumerate(outputs.handles.tolist())}
            outputs.logprobs = TokenLogprobs(
                np.array([where[h] for h in wanted.tolist()], np.int32),
                logprobs.token_ids[mine],
                logprobs.logprobs[mine],
                logprobs.rank[mine],
            )

    def _prompt_logprobs(self, result: ModelRunnerOutput) -> list[tuple[int, PromptLogprobs]]:
        found: list[tuple[int, PromptLogprobs]] = []
        for part in result.prompt_logprobs:
            if self._is_fresh(np.array([part.row], np.int32))[0]:
                found.append((int(self._rows.handle[part.row]), part))
        return found


def _of(news: dict[int, EngineCoreOutputs], client: int) -> EngineCoreOutputs:
    if client not in news:
        news[client] = EngineCoreOutputs()
    return news[client]
