"""The results of a worker that runs one request at a time: the oracle for workers without simple arithmetic.

Each request runs alone: its whole prompt in one step, one token per step, blocks in order, every token sent explicitly.
Test process.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.interfaces.worker import Worker
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.step import I32, NO_ROWS, Adapter, ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_testkit.fakes.tokens import Completion
from tenonry_testkit.spec import HarnessSpec


class SoloOracle:
    """Computes expected results with `worker`, which is ready and unshared; caches them."""

    def __init__(self, worker: Worker, spec: HarnessSpec, kinds: Sequence[str] = ("full",)) -> None:
        self._worker = worker
        self._block_size = spec.block_size
        self._kinds = kinds  # of the worker's KV groups
        self._step_id = 0
        self._known: dict[object, Completion] = {}

    def complete(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        max_model_len: int,
        stop_ids: Sequence[int] = (),
        adapter: Adapter | None = None,
        delivered: Sequence[int] = (),
    ) -> Completion:
        """As `spec.Oracle.complete`."""
        limit = (
            max_model_len
            if params.max_tokens is None
            else min(max_model_len, len(prompt) + params.max_tokens)
        )
        key = (tuple(prompt), repr(params), limit, tuple(stop_ids), adapter, tuple(delivered))
        if key not in self._known:
            new = NewRow(
                row=0,
                handle=1,
                token_ids=np.array([*prompt, *delivered], np.int32),
                num_computed=0,
                num_output=len(delivered),
                block_ids=self._block_ids(limit),
                sampling=params,
                stop_token_ids=tuple(stop_ids),
                adapter=adapter,
            )
            self._known[key] = self._run(new, len(prompt), limit)
        return self._known[key]

    def _block_ids(self, num_tokens: int) -> tuple[I32, ...]:
        """Blocks of each group, one group after another; a recurrent one has none."""
        count = -(-num_tokens // self._block_size)
        blocks = np.arange(count, dtype=np.int32)
        tables = []
        for kind in self._kinds:
            if kind == "recurrent":
                tables.append(NO_ROWS)
            else:
                tables.append(blocks)
                blocks = blocks + count
        return tuple(tables)

    def _run(self, new: NewRow, num_prompt: int, limit: int) -> Completion:
        output: list[int] = []
        length = len(new.token_ids)
        while length < limit:
            token = self._step(new, output[-1] if output else None)
            if token is None:
                return self._end(Completion(output, FinishReason.ERROR, None))
            output.append(token)
            length += 1
            if token in new.stop_token_ids and length - num_prompt >= new.sampling.min_tokens:
                return self._end(Completion(output, FinishReason.STOP, token))
        return self._end(Completion(output, FinishReason.LENGTH, None))

    def _step(self, new: NewRow, last: int | None) -> int | None:
        """Run one step of one row: the prompt when `last` is None, else that token. Returns the sampled token."""
        count = len(new.token_ids) if last is None else 1
        known = last if last is not None else (int(new.token_ids[0]) if count == 1 else -1)
        result = self._execute(
            SchedulerOutput(
                step_id=self._step_id,
                new=[new] if last is None else [],
                row=np.zeros(1, np.int32),
                num_tokens=np.array([count], np.int32),
                next_token=np.array([known], np.int32),
                samples=np.ones(1, np.bool_),
                generation=np.zeros(1, np.int32),
                total_tokens=count,
            )
        )
        return int(result.token_ids[0]) if len(result.row) else None

    def _end(self, completion: Completion) -> Completion:
        self._execute(SchedulerOutput(step_id=self._step_id, gone=np.zeros(1, np.int32)))
        return completion

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._step_id += 1
        answer = self._worker.execute_model(output)
        return answer if isinstance(answer, ModelRunnerOutput) else answer.result()
