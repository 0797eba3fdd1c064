"""Drives a scheduler without a worker: each step is answered immediately with arbitrary tokens. Any process.

One step is in flight. Requests keep what decides about them (prompt, limits, priority, tags, adapter, salt), without
what a worker would need: stop ids, media, grammars, log-probabilities.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tenonry.interfaces.scheduler import Scheduler
from tenonry.messages import EngineCoreRequest, OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.step import ModelRunnerOutput, SchedulerOutput

TOKEN_ID = 1


class VirtualEngine:
    """Steps `scheduler`. `num_outputs`: tokens that each unfinished request has got, by handle."""

    def __init__(self, scheduler: Scheduler, max_model_len: int) -> None:
        self._scheduler = scheduler
        self._max_model_len = max_model_len
        self._arrivals = 0
        self._targets: dict[int, int] = {}
        self.num_outputs: dict[int, int] = {}

    def add(self, source: EngineCoreRequest, now: float, max_tokens: int | None = None) -> None:
        """Add a request that ends after `max_tokens`, by default its own. Raises RequestError."""
        self._arrivals += 1
        if max_tokens is None:
            max_tokens = source.sampling_params.max_tokens
        plain = msgspec.structs.replace(
            source,
            sampling_params=SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True),
            stop_token_ids=(),
            bad_words=(),
            features=None,
            media=None,
            kv_transfer_params=None,
        )
        self._scheduler.add_request(Request(plain, self._arrivals, now, self._max_model_len))
        self.num_outputs[source.handle] = 0

    def end(self, handle: int, num_outputs: int = 0) -> None:
        """End a request after this number of tokens."""
        if self.num_outputs.get(handle, num_outputs) < num_outputs:
            self._targets[handle] = num_outputs
        elif handle in self.num_outputs:
            self._finish(handle)

    def has_requests(self) -> bool:
        return self._scheduler.has_requests()

    def step(self) -> SchedulerOutput:
        """Schedule and answer one step."""
        output = self._scheduler.schedule()
        if not output.is_empty:
            self._take(self._scheduler.update_from_output(output, answer(output)))
        return output

    def _take(self, outputs_by_client: OutputsByClient) -> None:
        for outputs in outputs_by_client.values():
            counts = (
                np.diff(outputs.offsets)
                if len(outputs.offsets)
                else np.ones(len(outputs.handles), int)
            )
            for handle, count in zip(outputs.handles.tolist(), counts.tolist(), strict=True):
                self.num_outputs[handle] = self.num_outputs.get(handle, 0) + count
            for finished in outputs.finished:
                self._forget(finished.handle)
        for handle, target in [*self._targets.items()]:
            if self.num_outputs[handle] >= target:
                self._finish(handle)

    def _finish(self, handle: int) -> None:
        self._scheduler.finish_requests([handle], FinishReason.STOP)
        self._forget(handle)

    def _forget(self, handle: int) -> None:
        self.num_outputs.pop(handle, None)
        self._targets.pop(handle, None)


def answer(output: SchedulerOutput) -> ModelRunnerOutput:
    """One token per sampling row; every grammar is ready."""
    row = output.row[output.samples]
    return ModelRunnerOutput(
        step_id=output.step_id,
        row=row,
        offsets=np.arange(len(row) + 1, dtype=np.int32),
        token_ids=np.full(len(row), TOKEN_ID, np.int32),
        prepared=[*output.prepare],
    )
