"""Conversion of texts to pooling requests and of their results to scores, blocking or not. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenonry.errors import EngineGenerateError, RequestError
from tenonry.interfaces.io_processor import IOProcessor, read_prompt
from tenonry.outputs import PoolingOutput, RequestOutput
from tenonry.sampling_params import OutputKind, PoolingParams, SamplingParams
from tenonry_worker_torch.pooling.checks import describe_tasks

Texts = str | Sequence[str]


def sampling(params: PoolingParams) -> SamplingParams:
    """Return a pooling request in the engine's form: one token, which is ignored."""
    if not isinstance(params, PoolingParams):
        raise RequestError(f"pooling={params!r:.64} must be PoolingParams(task=...)", "pooling")
    return SamplingParams(
        temperature=0.0,
        max_tokens=1,
        detokenize=False,
        output_kind=OutputKind.FINAL,
        pooling=params,
    )


def pooled(output: RequestOutput | None) -> PoolingOutput:
    """Raises EngineGenerateError where the request failed or was aborted."""
    if output is None or output.pooled is None:
        raise output.failure() if output and output.error else EngineGenerateError("it was aborted")
    return PoolingOutput(output.request_id, output.prompt_token_ids, output.pooled)


def pair(
    io: IOProcessor | None, first: str, second: str, keep: int | None
) -> tuple[dict[str, Any], SamplingParams]:
    """Return two texts joined by the IO processor, at most `keep` tokens (-1: as many as fit). Raises RequestError."""
    params = PoolingParams(task="score")
    prompt = {"prompt": first, "text_pair": second, "truncate_prompt_tokens": keep}
    made = io.process_prompt(read_prompt(prompt), sampling(params)) if io else None
    if not made or not made.features:
        raise RequestError("scores need an IO processor that reads a 'text_pair'", "text_1")
    params = PoolingParams(task="score", pair_start=int(made.features["pair_start"]))
    return {"prompt_token_ids": made.token_ids}, sampling(params)


def scores_by(tasks: Mapping[str, int]) -> str:
    """Task that scores two texts: "score" of a head, else "embed", whose vectors are compared."""
    for task in ("score", "embed"):
        if task in tasks:
            return task
    raise RequestError(
        f"two texts cannot be scored: {describe_tasks(tasks)}", "model", "unsupported_task"
    )


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Cosine of the angle between two vectors; 0 if one has no length."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def matched(first: Texts, second: Texts) -> list[tuple[str, str]]:
    """One text with each of the others, or the texts of two lists of one length. Raises RequestError."""
    left = [first] if isinstance(first, str) else list(first)
    right = [second] if isinstance(second, str) else list(second)
    if len(left) == 1:
        left *= len(right)
    if len(left) != len(right) or not left:
        raise RequestError(
            f"text_1 has {len(left)} texts and text_2 has {len(right)}; give one first text, or as many as there are "
            "second ones",
            "text_1",
        )
    return list(zip(left, right, strict=True))
