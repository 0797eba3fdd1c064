"""Whether a request asks for what the model does: tokens, or one of its pooling tasks; and has room for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tenonry.errors import RequestError
from tenonry.interfaces.executor import Executor
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


def check_length(request: EngineCoreRequest, max_model_len: int) -> None:
    """A prompt leaves room for `min_tokens`, and for one token unless it is pooled. Raises RequestError."""
    params = request.sampling_params
    room = max_model_len - len(request.prompt_token_ids)
    remedy = (
        "all for the prompt; shorten it, or give truncate_prompt_tokens=-1, which cuts it"
        if params.pooling
        else "and at least one must be left for the output; shorten the prompt"
    )
    if len(request.output_token_ids) >= room + bool(params.pooling):
        raise RequestError(
            f"the prompt has {max_model_len - room + len(request.output_token_ids)} tokens, but the context holds "
            f"max_model_len={max_model_len} tokens {remedy}",
            "prompt",
            "context_length_exceeded",
        )
    if params.min_tokens > room:
        raise RequestError(
            f"min_tokens={params.min_tokens} is above {room}, which a prompt of {max_model_len - room} tokens leaves "
            f"of max_model_len={max_model_len}; lower it, or shorten the prompt",
            "min_tokens",
        )


def check_task(request: EngineCoreRequest, tasks: Mapping[str, int]) -> None:
    """`tasks`: as `EngineInfo.tasks`. Raises RequestError that says what the model does, and how to ask for it."""
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
            f"pooling task '{task:.40}' is not served: {says(tasks)}", "pooling", "unsupported_task"
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


def tasks_of(executor: Executor) -> dict[str, int]:
    """`EngineInfo.tasks` of a started executor: none where its worker never pools."""
    if "pooling" not in executor.capabilities:
        return {}
    tasks: dict[str, int] = executor.call("tasks")[0]
    return tasks


def says(tasks: Mapping[str, int]) -> str:
    """What the model serves, and the remedy where that is tokens alone."""
    if not tasks:
        return (
            "this model generates; start the server with a model that pools, or with --worker pooling for one whose "
            "hidden states are wanted"
        )
    return f"this model serves {', '.join(tasks)}; use {instead(tasks)}"


def instead(tasks: Mapping[str, int]) -> str:
    """The calls for what the model serves."""
    return "; ".join(CALLS[task] for task in CALLS if task in tasks)
