"""Turns engine outputs into streams: detokenises, applies stop strings, ends requests, counts. Front end.

`absorb` takes each frame in cheaply; `flush` does the work per request once for all tokens that arrived since the
last one.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable

import numpy as np

from tenonry.client.io_calls import expect, io_call, io_fault
from tenonry.client.stream import Completion, Stream
from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError
from tenonry.interfaces.io_processor import IOProcessor, ProcessedPrompt
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, FinishedOutput, ScheduledOutput
from tenonry.outputs import FinishReason, Logprob, RequestMetrics
from tenonry.stats import IterationStats

Lines = Iterable[tuple[np.ndarray, np.ndarray, int]]


class OutputProcessor:
    """All open requests of one front end. `clock`: monotonic clock of the front end.

    `touched`: completions with tokens that `flush` has not processed yet. `stream_interval`: tokens of a completion
    delivered together, after the first. `on_end`: receives the id of each finished request.
    """

    def __init__(
        self,
        io: IOProcessor | None,
        config: EngineConfig,
        clock: Callable[[], float],
        *,
        log_stats: bool = False,
        on_end: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._io = io
        self._clock = clock
        self._log_stats = log_stats
        self._on_end = on_end
        self._log_requests = config.log_requests
        self._stream_interval = config.stream_interval
        # Completions that engines still run.
        self._completions: dict[int, Completion] = {}
        self._streams: dict[str, Stream] = {}
        self.touched: list[Completion] = []
        self._aborts: list[int] = []  # handles that ended here and not in the engine
        self._iterations: dict[int, IterationStats] = defaultdict(IterationStats)  # by engine

    def __len__(self) -> int:
        return len(self._streams)

    # ------------------------------------------------------------------ requests
    def add(self, processed: ProcessedPrompt, requests: list[EngineCoreRequest]) -> Stream:
        """Open a stream for a new id. Raises EngineGenerateError if the IO processor fails."""
        first = requests[0]
        stream = Stream(
            first,
            first.request_id,
            first.sampling_params.output_kind,
            processed.text,
            processed.token_ids.tolist(),
            RequestMetrics(arrival_time=self._clock() - first.waited_s),
        )
        for index, request in enumerate(requests):
            params = request.sampling_params
            detokenizer = None
            if self._io and params.detokenize:
                prompt = tuple(stream.prompt_token_ids)
                with io_call(self._io, stream.request_id, "make_detokenizer"):
                    detokenizer = self._io.make_detokenizer(prompt, params)
                    if detokenizer and not hasattr(detokenizer, "push"):
                        raise TypeError(
                            f"the result is {detokenizer!r:.99}; it must be of type Detokenizer"
                        )
            delivered_ids = array("i", request.output_token_ids)
            stream.completions.append(
                Completion(request.handle, index, stream, detokenizer, delivered_ids)
            )
        self._completions |= {completion.handle: completion for completion in stream.completions}
        self._streams[first.request_id] = stream
        if self._log_requests:
            stream.log_added()
        return stream

    def completion(self, handle: int) -> Completion | None:
        """Running completion of this handle, or None."""
        return self._completions.get(handle)

    def get(self, request_id: str) -> Stream | None:
        return self._streams.get(request_id)

    def request_ids(self) -> list[str]:
        return list(self._streams)

    def abort(self, request_ids: Iterable[str]) -> list[int]:
        """End streams with `abort`; returns the handles that engines still run."""
        for stream in filter(None, map(self._streams.get, request_ids)):
            for completion in stream.completions:
                self._push_received(completion)
                if completion.finish_reason is None:
                    self._finish(completion, FinishReason.ABORT, None)
            stream.notify()
        return self.flush(0)

    def live_handles(self) -> list[int]:
        """Handles that engines still run."""
        return list(self._completions)

    def fail(self, handles: Iterable[int], error: Exception) -> list[int]:
        """End the streams of these handles with `error`; returns their other handles, which engines still run."""
        lost = [self._completions.pop(handle, None) for handle in handles]
        siblings = []
        for stream in {completion.stream for completion in lost if completion}:
            siblings += [
                each.handle
                for each in stream.completions
                if self._completions.pop(each.handle, None)
            ]
            stream.error = stream.error or error
            self._close(stream, "error")
            stream.notify()
        return siblings

    # ------------------------------------------------------------------ outputs
    def absorb(self, outputs: EngineCoreOutputs) -> None:
        """Receive one frame; callers see nothing before `flush`."""
        completions = self._completions
        fresh: list[Completion] = []
        handles = outputs.handles.tolist()
        owners = handles
        if len(outputs.offsets):
            owners = np.repeat(outputs.handles, np.diff(outputs.offsets)).tolist()
        for handle, token_id in zip(owners, outputs.token_ids.tolist(), strict=True):
            completion = completions.get(handle)
            if completion:
                if not completion.received_ids:
                    fresh.append(completion)
                completion.received_ids.append(token_id)
        self.touched += fresh
        if outputs.logprobs is not None or outputs.prompt_logprobs:
            self._absorb_logprobs(handles, outputs)
        prompts = sum(self._on_scheduled(outputs.engine_index, each) for each in outputs.scheduled)
        now = self._clock()  # once for all completions of a frame
        if self._log_stats and owners:
            iteration = self._iterations[outputs.engine_index]
            iteration.num_generation_tokens += len(owners)
            iteration.step_tokens.append(prompts + len(owners))
            times = [each.last_time for each in fresh if each.last_time]
            iteration.inter_token_latency_s += _gaps(times, now)
        for each in fresh:
            each.last_time = now
        if outputs.weight_version:
            for completion in filter(None, map(completions.get, handles)):
                completion.stream.weight_version = outputs.weight_version
        for finished in outputs.finished:
            self._on_finished(finished)

    def _absorb_logprobs(self, handles: list[int], outputs: EngineCoreOutputs) -> None:
        if (sampled := outputs.logprobs) is not None:
            lines = zip(sampled.token_ids, sampled.logprobs, sampled.rank.tolist(), strict=True)
            for index, line in zip(sampled.row.tolist(), lines, strict=True):
                completion = self._completions.get(handles[index])
                if completion:
                    wanted = completion.stream.request.sampling_params.logprobs
                    completion.received_logprobs += self._logprobs(completion, wanted, [line])
        for handle, part in zip(
            outputs.prompt_logprobs_handles, outputs.prompt_logprobs, strict=True
        ):
            completion = self._completions.get(handle)
            if completion and completion.index == 0:
                stream = completion.stream
                wanted = stream.request.sampling_params.prompt_logprobs
                lines = zip(part.token_ids, part.logprobs, part.rank.tolist(), strict=True)
                # A preempted request recomputes them.
                known = (stream.prompt_logprobs or [None])[: part.start]
                stream.prompt_logprobs = [*known, *self._logprobs(completion, wanted, lines)]

    def _logprobs(
        self, completion: Completion, wanted: int | None, lines: Lines
    ) -> list[dict[int, Logprob]]:
        """One dict per line of columns: token ids, log-probabilities, and the rank of the first."""
        if wanted is None:
            return []
        try:
            return [_logprob_entry(*line, wanted, self._io) for line in lines]
        except BaseException as error:  # noqa: BLE001 - it fails this request, and is named
            self._io_failed(completion, "token_texts", error)
            return []

    def _on_scheduled(self, engine_index: int, event: ScheduledOutput) -> int:
        """Returns the prompt tokens of a request that runs for the first time, else 0."""
        completion = self._completions.get(event.handle)
        if not completion:
            return 0
        stream = completion.stream
        stream.engine_index = engine_index
        if completion.is_scheduled:  # it resumes after the death of an engine
            return 0
        completion.is_scheduled = True
        iteration = self._iterations[engine_index]
        num_tokens = len(stream.prompt_token_ids)
        stream.num_cached_tokens = event.num_cached_tokens
        stream.metrics.queued_s = event.queued_s
        iteration.num_prompt_tokens += num_tokens
        iteration.num_cached_tokens += event.num_cached_tokens
        return num_tokens

    def _on_finished(self, finished: FinishedOutput) -> None:
        completion = self._completions.pop(finished.handle, None)
        if not completion:
            return
        stream = completion.stream
        stream.metrics.num_preemptions += finished.num_preemptions
        stream.pooled = finished.pooled
        stream.kv_transfer_params = finished.kv_transfer_params or stream.kv_transfer_params
        self._push_received(completion)
        if completion.finish_reason is None:
            if finished.reason is FinishReason.ERROR:
                stream.error = stream.error or EngineGenerateError(
                    finished.error or "the engine gave no reason",
                    finished.code,
                    finished.param,
                    request_id=stream.request_id,
                )
            stop_id = finished.stop_token_id
            user_ids = stream.request.sampling_params.stop_token_ids or ()
            self._finish(completion, finished.reason, stop_id if stop_id in user_ids else None)
        stream.notify()

    def flush(self, most: int = sys.maxsize) -> list[int]:
        """Detokenise and wake callers, for at most `most` completions; returns handles to abort in the engine."""
        touched = self.touched[:most]
        self.touched = self.touched[most:]
        for completion in touched:
            self._push_received(completion)
            completion.stream.notify()
        aborts, self._aborts = self._aborts, []
        return aborts

    def _push_received(self, completion: Completion) -> None:
        """Detokenise received ids, unless the request has ended; a stop string ends it."""
        ids = completion.received_ids
        if not ids or completion.finish_reason is not None:
            return
        completion.received_ids = []
        detokenizer = completion.detokenizer
        if detokenizer is not None:
            try:
                completion.pending_text += expect(detokenizer.push(ids), str)
            except BaseException as error:  # noqa: BLE001 - it fails this request, and is named
                self._io_failed(completion, "push", error)
                return
            if detokenizer.stop_reason is not None:
                self._count(completion, ids[: detokenizer.consumed])
                self._finish(completion, FinishReason.STOP, detokenizer.stop_reason)
                return
        self._count(completion, ids)

    def _io_failed(self, completion: Completion, call: str, error: BaseException) -> None:
        """Handle an exception of the IO processor: the request ends, here and in the engine."""
        stream = completion.stream
        if completion.finish_reason is None:
            stream.error = stream.error or io_fault(self._io, stream.request_id, call, error)
            completion.detokenizer = None
            self._finish(completion, FinishReason.ERROR, None)
            stream.notify()

    def _count(self, completion: Completion, ids: list[int]) -> None:
        completion.pending_ids += ids
        completion.delivered_ids.fromlist(ids)
        if completion.received_logprobs:
            completion.pending_logprobs = completion.pending_logprobs or []
            completion.pending_logprobs += completion.received_logprobs[: len(ids)]
            completion.received_logprobs = []
        stream = completion.stream
        metrics = stream.metrics
        if not metrics.first_token_time:
            metrics.first_token_time = completion.last_time
            if self._log_stats:
                iteration = self._iterations[stream.engine_index]
                iteration.ttft_s.append(completion.last_time - metrics.arrival_time)
        if not completion.num_generated or len(completion.pending_ids) >= self._stream_interval:
            stream.ready[completion.index] = completion
        completion.num_generated += len(ids)

    def _finish(
        self, completion: Completion, reason: FinishReason, stop_reason: int | str | None
    ) -> None:
        """Set the terminal outcome of one completion; the last one closes the stream."""
        stream = completion.stream
        if completion.detokenizer is not None and not isinstance(stop_reason, str):
            try:
                completion.pending_text += expect(completion.detokenizer.finish(), str)
            except BaseException as error:  # noqa: BLE001 - it fails this request, and is named
                self._io_failed(completion, "finish", error)
                return
        completion.finish_reason = str(reason)
        completion.stop_reason = stop_reason
        if self._completions.pop(completion.handle, None) is not None:
            self._aborts.append(completion.handle)
        stream.ready[completion.index] = completion
        stream.num_finished += 1
        stream.metrics.last_token_time = completion.last_time
        if stream.finished:
            self._close(stream, str(reason))

    def _close(self, stream: Stream, reason: str) -> None:
        """End a request, once."""
        if self._streams.pop(stream.request_id, None) is None:
            return
        self._on_end(stream.request_id)
        stream.ready |= {each.index: each for each in stream.completions if each.pending_ids}
        if self._log_stats:
            stats = stream.finished_stats(reason, self._clock())
            self._iterations[stream.engine_index].finished.append(stats)
        if self._log_requests:
            stream.log_end()

    def take_iteration(self, engine_index: int = 0) -> IterationStats:
        """Numbers of an engine's requests since the last call."""
        return self._iterations.pop(engine_index, None) or IterationStats()

    def take_iterations(self) -> dict[int, IterationStats]:
        """Numbers of all active engines since the last call."""
        return {index: self.take_iteration(index) for index in list(self._iterations)}


def _gaps(times: list[float], now: float) -> list[float]:
    """Seconds since each time. Nearly always all are that of the previous frame."""
    first = times[:1]
    if times == first * len(times):
        return [now - time for time in first] * len(times)
    return [now - time for time in times]


def _logprob_entry(
    token_ids: np.ndarray, logprobs: np.ndarray, rank: int, wanted: int, io: IOProcessor | None
) -> dict[int, Logprob]:
    """Entry of one position: the sampled token first, with its rank, then the `wanted` most likely ones."""
    ids = token_ids[: wanted + 1].tolist()
    values = logprobs[: wanted + 1].tolist()
    texts = expect(io.token_texts(ids), list) if io else [None] * len(ids)
    entry: dict[int, Logprob] = {}
    for place, (token_id, value, text) in enumerate(zip(ids, values, texts, strict=True)):
        entry.setdefault(token_id, Logprob(value, place or rank, text))
    return entry
