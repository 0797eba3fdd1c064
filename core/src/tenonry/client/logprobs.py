"""Log-probabilities from engine columns to what callers read. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenonry.client.stream import Completion
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.messages import EngineCoreOutputs
from tenonry.outputs import Logprob
from tenonry.step import TokenLogprobs


def attach_logprobs(
    completions: Mapping[int, Completion], handles: Sequence[int], logprobs: TokenLogprobs, io: IOProcessor | None
) -> None:
    """One dict per sampled token: the sampled token first, then the most likely ones that the request asked for."""
    for line, index in enumerate(logprobs.row.tolist()):
        completion = completions.get(handles[index])
        if completion is None:
            continue
        wanted = completion.stream.request.sampling_params.logprobs
        if wanted is None:
            continue
        entry = _entry(logprobs.token_ids[line], logprobs.logprobs[line], int(logprobs.rank[line]), wanted, io)
        if completion.new_logprobs is None:
            completion.new_logprobs = []
        completion.new_logprobs.append(entry)


def attach_prompt_logprobs(
    completions: Mapping[int, Completion], outputs: EngineCoreOutputs, io: IOProcessor | None
) -> None:
    """One dict per prompt token; None for the first, which nothing predicts."""
    for handle, part in zip(outputs.prompt_logprobs_handles, outputs.prompt_logprobs, strict=True):
        completion = completions.get(handle)
        if completion is None or completion.index != 0:
            continue
        stream = completion.stream
        wanted = stream.request.sampling_params.prompt_logprobs or 0
        if stream.prompt_logprobs is None:
            stream.prompt_logprobs = [None]
        del stream.prompt_logprobs[part.start :]  # a preempted request computes them again
        for line in range(len(part.rank)):
            entry = _entry(part.token_ids[line], part.logprobs[line], int(part.rank[line]), wanted, io)
            stream.prompt_logprobs.append(entry)


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
