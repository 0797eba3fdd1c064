"""Log-probabilities from engine columns to what callers read. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenonry.client.stream import Completion
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.messages import EngineCoreOutputs
from tenonry.outputs import Logprob
from tenonry.step import TokenLogprobs

Failed = list[tuple[Completion, Exception]]  # completions whose tokens the IO processor could not put into words


def attach_logprobs(
    completions: Mapping[int, Completion], handles: Sequence[int], logprobs: TokenLogprobs, io: IOProcessor | None
) -> Failed:
    """One dict per sampled token: the sampled token first, then the most likely ones that the request asked for."""
    failed: Failed = []
    for line, index in enumerate(logprobs.row.tolist()):
        completion = completions.get(handles[index])
        wanted = None if completion is None else completion.stream.request.sampling_params.logprobs
        if completion is None or wanted is None:
            continue
        try:
            entry = _entry(logprobs.token_ids[line], logprobs.logprobs[line], int(logprobs.rank[line]), wanted, io)
        except Exception as error:  # noqa: BLE001 - the caller ends the one request
            failed.append((completion, error))
            continue
        if completion.fresh_logprobs is None:
            completion.fresh_logprobs = []
        completion.fresh_logprobs.append(entry)
    return failed


def attach_prompt_logprobs(
    completions: Mapping[int, Completion], outputs: EngineCoreOutputs, io: IOProcessor | None
) -> Failed:
    """One dict per prompt token; None for the first, which nothing predicts."""
    failed: Failed = []
    for handle, part in zip(outputs.prompt_logprobs_handles, outputs.prompt_logprobs, strict=True):
        completion = completions.get(handle)
        if completion is None or completion.index != 0:
            continue
        stream = completion.stream
        wanted = stream.request.sampling_params.prompt_logprobs or 0
        try:
            lines = zip(part.token_ids, part.logprobs, part.rank.tolist(), strict=True)
            entries = [_entry(ids, values, rank, wanted, io) for ids, values, rank in lines]
        except Exception as error:  # noqa: BLE001 - the caller ends the one request
            failed.append((completion, error))
            continue
        if stream.prompt_logprobs is None:
            stream.prompt_logprobs = [None]
        stream.prompt_logprobs[part.start :] = entries  # a preempted request computes them again
    return failed


def _entry(
    token_ids: np.ndarray, logprobs: np.ndarray, rank: int, wanted: int, io: IOProcessor | None
) -> dict[int, Logprob]:
    ids = token_ids[: wanted + 1].tolist()
    values = logprobs[: wanted + 1].tolist()
    entry = {ids[0]: Logprob(values[0], rank, _text(ids[0], io))}
    for place, (token_id, value) in enumerate(zip(ids[1:], values[1:], strict=True), start=1):
        entry.setdefault(token_id, Logprob(value, place, _text(token_id, io)))
    return entry


def _text(token_id: int, io: IOProcessor | None) -> str | None:
    return io.token_texts([token_id])[0] if io is not None else None
