"""From texts to pooling requests and from their answers to scores, for `LLM` and `AsyncLLM` alike. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tenonry.errors import EngineGenerateError, RequestError
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import RequestOutput
from tenonry.pooling.checks import says
from tenonry.sampling_params import OutputKind, PoolingParams, SamplingParams


class PoolingOutput(msgspec.Struct, frozen=True):
    """The answer to a pooling request: `data` f32[D], a vector or the scores of a head."""

    request_id: str
    prompt_token_ids: list[int]
    data: NDArray[np.float32]


class Pair(NamedTuple):
    """Two texts as one prompt, and where the second begins."""

    prompt: dict[str, Any]
    params: SamplingParams


def sampling(params: PoolingParams) -> SamplingParams:
    """A pooling request as the engine runs it: one token, which is not looked at."""
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
        reason = "it was aborted" if output is None else output.error or "it was aborted"
        raise EngineGenerateError(f"the pooling request gave nothing: {reason}")
    return PoolingOutput(output.request_id, output.prompt_token_ids, output.pooled)


def pair(io: IOProcessor | None, first: str, second: str) -> Pair:
    """As the model's tokenizer joins two texts: where it gives no types of tokens, the model was trained without.

    Raises RequestError without a tokenizer.
    """
    if io is None:
        raise RequestError("scores of texts need a tokenizer, and none is loaded", "text_1")
    try:
        tokenizer = io.get_tokenizer()
    except ValueError as error:
        raise RequestError(f"scores of texts need a tokenizer: {error}", "text_1") from error
    encoded = tokenizer(first, second)
    types = list(encoded.get("token_type_ids", ()))
    start = types.index(1) if 1 in types else 0
    params = PoolingParams(task="score", pair_start=start)
    return Pair({"prompt_token_ids": list(encoded["input_ids"])}, sampling(params))


def scores_by(tasks: Mapping[str, int]) -> str:
    """The task that scores two texts: "score" of a head, else "embed", whose vectors are compared."""
    for task in ("score", "embed"):
        if task in tasks:
            return task
    raise RequestError(f"two texts cannot be scored: {says(tasks)}", "model", "unsupported_task")


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    """Of the angle between two vectors; 0 where one has no length."""
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def matched(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
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
