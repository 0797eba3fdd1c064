"""Request check `pooling`: only generating models generate tokens, and only pooling models pool. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenonry.errors import RequestError
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest
from tenonry.sampling_params import MAX_TOKENS, PoolingParams, check_type

FIELDS = msgspec.structs.fields(PoolingParams)
ALONE = {
    "n": 1,
    "max_tokens": 1,
    "logprobs": None,
    "prompt_logprobs": None,
    "structured_output": None,
}
CALLS = {
    "embed": "LLM.embed, AsyncLLM.encode or POST /v1/embeddings",
    "classify": "LLM.classify, AsyncLLM.encode or POST /v1/classify",
    "score": "LLM.score, AsyncLLM.score or POST /v1/score",
}


def check_task(request: EngineCoreRequest, limits: RequestLimits) -> None:
    """Raise RequestError with the model's tasks, and the calls for them."""
    tasks = limits.tasks
    pooling = request.sampling_params.pooling
    if pooling is not None:
        _check_params(pooling, tasks)
        for field, wanted in ALONE.items():
            value = getattr(request.sampling_params, field)
            if value != wanted:
                raise RequestError(
                    f"{field}={value}: a pooling request has {field}={wanted}", field
                )
        if request.output_token_ids:
            raise RequestError("a pooling request has no output_token_ids", "output_token_ids")
        if len(request.prompt_token_ids) > limits.max_model_len:
            raise RequestError(
                f"the prompt has {len(request.prompt_token_ids)} tokens, but the context holds max_model_len="
                f"{limits.max_model_len} tokens; shorten it, or give truncate_prompt_tokens=-1, which cuts it",
                "prompt",
                "context_length_exceeded",
            )
    elif tasks:
        raise RequestError(
            f"this model does not generate, it serves {', '.join(tasks)}: use {instead(tasks)}",
            "model",
            "unsupported_task",
        )


def _check_params(pooling: PoolingParams, tasks: Mapping[str, int]) -> None:
    for info in FIELDS:
        check_type(f"pooling.{info.name}", getattr(pooling, info.name), info.type)
    task = pooling.task
    if task not in tasks:
        raise RequestError(
            f"pooling task '{task:.40}' is not served: {describe_tasks(tasks)}",
            "pooling",
            "unsupported_task",
        )
    dimensions = pooling.dimensions
    if dimensions is not None and not (task == "embed" and 1 <= dimensions <= tasks[task]):
        raise RequestError(
            f"dimensions={dimensions}: a vector of this model may be cut to 1 to {tasks.get('embed', 0)} numbers, and "
            "scores are not cut",
            "dimensions",
        )
    if not 0 <= pooling.pair_start <= MAX_TOKENS:
        raise RequestError(
            f"pair_start={pooling.pair_start}: it must be 0 to {MAX_TOKENS}", "pair_start"
        )


def describe_tasks(tasks: Mapping[str, int]) -> str:
    """Description of the model's tasks, with the remedy if it only generates."""
    if not tasks:
        return (
            "this model generates; start the server with a model that pools, or with --worker pooling for one whose "
            "hidden states are wanted"
        )
    return f"this model serves {', '.join(tasks)}; use {instead(tasks)}"


def instead(tasks: Mapping[str, int]) -> str:
    """Calls for the tasks of the model."""
    return "; ".join(CALLS[task] for task in CALLS if task in tasks)
